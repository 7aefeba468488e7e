//! Volumes with an operation in flight. The specification lets a plugin answer a second operation
//! on a volume with `ABORTED`, which the orchestrator repeats later.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tonic::Status;

/// The most operations at once. Each occupies a thread, which a server that does not answer may
/// block.
pub const LIMIT: usize = 64;

/// The keys of the operations in flight. Clones share them.
#[derive(Clone, Default)]
pub struct InFlight(Arc<Mutex<HashSet<String>>>);

/// An operation, in flight until it is dropped.
pub struct Operation {
    table: InFlight,
    key: String,
}

impl InFlight {
    /// Starts an operation. Returns `ABORTED` if `key` has one in flight, and `RESOURCE_EXHAUSTED`
    /// if [`LIMIT`] operations are.
    pub fn start(&self, key: &str) -> Result<Operation, Status> {
        let mut keys = self.0.lock();
        if keys.contains(key) {
            let text = "another operation on this volume is in flight";
            return Err(Status::aborted(text));
        }
        if keys.len() >= LIMIT {
            let text = format!("{LIMIT} operations are in flight");
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
        self.table.0.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn a_second_operation_on_a_volume_is_aborted_until_the_first_ends() {
        let table = InFlight::default();
        let first = table.start("v").expect("started");
        let second = table.start("v").err().expect("refused");
        assert_eq!(second.code(), Code::Aborted);
        let _other = table.start("w").expect("another volume");
        drop(first);
        table.start("v").expect("started again");
    }

    #[test]
    fn the_table_is_bounded() {
        let table = InFlight::default();
        let all: Vec<_> = (0..LIMIT).map(|at| table.start(&at.to_string())).collect();
        assert!(all.iter().all(Result::is_ok));
        let more = table.start("more").err().expect("refused");
        assert_eq!(more.code(), Code::ResourceExhausted);
    }
}
