//! A plugin of the Container Storage Interface (CSI): volumes of Kubernetes and other container
//! orchestrators from any source of barge.
//!
//! [`grpc`] routes calls to the services: [`node`] mounts volumes with `barge mount`, and
//! [`controller`] makes directories beneath a shared one. [`policy`] decides on the sources,
//! options and secrets that a volume may have. docs/design/csi.md explains the design and the
//! threat model.

pub mod controller;
pub mod grpc;
pub mod in_flight;
pub mod mount;
pub mod node;
pub mod paths;
pub mod policy;
pub mod proto;
pub mod volume_id;

mod capabilities;
