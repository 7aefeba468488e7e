//! READ_PLUS: two servers of one directory, one of which does not support it.

use std::time::Duration;

use super::{TableConfig, with_port_file};
use crate::mounts::MountConfig;

pub(super) fn config(barge: &str, rounds: Option<u16>) -> TableConfig {
    let serve = |port: &str, options: &str| {
        format!(
            "{barge} serve {{share}} --nfs tcp:127.0.0.1:{{{port}}} --nfs-state-dir {{run}}/state-{port} {options}"
        )
    };
    let plain = serve("port2", "--nfs-no-read-plus");
    TableConfig {
        name: "readplus",
        server_commands: vec![serve("port", ""), with_port_file("port2", &plain)],
        guest: MountConfig::named("nfs4.2").guest_config(&[]),
        env: Vec::new(),
        size: 32,
        rounds: rounds.unwrap_or(5),
        timeout: Duration::from_secs(480),
    }
}
