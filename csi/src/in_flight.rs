//! Volumes with an operation in flight. The specification lets a plugin answer a second operation
//! on a volume with `ABORTED`, which the orchestrator repeats later.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tonic::Status;

/// Largest number of operations at once. Each occupies a thread, which a server that does not
/// answer may block.
pub const MAX_OPERATIONS: usize = 64;

/// Largest number of queries at once. They have a bound of their own, so that queries of volumes
/// that do not answer leave threads to operations. The kubelet has one for each volume of a pod.
pub const MAX_QUERIES: usize = 64;

/// The volumes with a call in flight, up to a bound. Clones share them.
#[derive(Clone)]
pub struct InFlight {
    keys: Arc<Mutex<HashSet<String>>>,
    max: usize,
}

/// An operation, in flight until it is dropped.
pub struct Operation {
    table: InFlight,
    key: String,
}

impl InFlight {
    /// Creates an empty table for `max` calls.
    pub fn new(max: usize) -> InFlight {
        InFlight {
            keys: Arc::default(),
            max,
        }
    }

    /// Starts an operation. Returns `ABORTED` if `key` has one in flight, and `RESOURCE_EXHAUSTED`
    /// if as many operations as allowed are.
    pub fn start(&self, key: &str) -> Result<Operation, Status> {
        let mut keys = self.keys.lock();
        if keys.contains(key) {
            let text = "another operation on this volume is in flight";
            return Err(Status::aborted(text));
        }
        if keys.len() >= self.max {
            let text = format!("{} operations are in flight", self.max);
            return Err(Status::resource_exhausted(text));
        }
        keys.insert(key.to_owned());
        Ok(Operation {
            table: self.clone(),
            key: key.to_owned(),
        })
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.table.keys.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn a_second_operation_on_a_volume_is_aborted_until_the_first_ends() {
        let table = InFlight::new(MAX_QUERIES);
        let first = table.start("v").expect("started");
        let second = table.start("v").err().expect("refused");
        assert_eq!(second.code(), Code::Aborted);
        let _other = table.start("w").expect("another volume");
        drop(first);
        table.start("v").expect("started again");
    }

    #[test]
    fn the_table_is_bounded() {
        let table = InFlight::new(MAX_QUERIES);
        let all: Vec<_> = (0..MAX_QUERIES)
            .map(|at| table.start(&at.to_string()))
            .collect();
        assert!(all.iter().all(Result::is_ok));
        let more = table.start("more").err().expect("refused");
        assert_eq!(more.code(), Code::ResourceExhausted);
    }
}
