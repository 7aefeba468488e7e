//! READ_PLUS: two servers of one directory, one of which does not support it.

use std::time::Duration;

use super::{Subject, with_port_told};
use crate::ways::Way;

pub(super) fn subject(barge: &str, rounds: Option<u16>) -> Subject {
    let serve = |port: &str, options: &str| {
        format!(
            "{barge} serve {{share}} --nfs tcp:127.0.0.1:{{{port}}} --nfs-state-dir {{run}}/state-{port} {options}"
        )
    };
    let plain = serve("port2", "--nfs-no-read-plus");
    Subject {
        name: "readplus",
        serve: vec![serve("port", ""), with_port_told("port2", &plain)],
        seat: Way::named("nfs4.2").seat(&[]),
        env: Vec::new(),
        size: 32,
        rounds: rounds.unwrap_or(5),
        timeout: Duration::from_secs(480),
    }
}
