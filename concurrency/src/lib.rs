//! The building blocks that several rooms share for work by many threads: sharded locks, the hasher
//! of their tables, compact maps, and thread pools.
//!
//! The locks are parking_lot's: a panic under a lock unlocks it, and later callers see the data as
//! it was left. std's locks would be poisoned, and turn one failed request into a failure of all
//! that follow. Code under a lock therefore changes data in an order that is consistent at each
//! step.

mod hash;
mod number_map;
mod shards;
mod thread_pool;

pub use hash::FastRandomState;
pub use number_map::NumberMap;
pub use shards::Shards;
pub use thread_pool::ThreadPool;
