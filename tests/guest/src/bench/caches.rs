//! The guest makes the mounts itself, one at a time, of the one server there is.

use std::time::Duration;

use super::{Subject, with_port_told};
use crate::ways::Way;

pub(super) fn subject(barge: &str) -> Subject {
    let way = Way::named("none");
    let serve = format!("{barge} serve {{share}} {}", way.address());
    Subject {
        name: "caches",
        serve: vec![with_port_told("port", &serve)],
        seat: way.seat(&[]),
        env: vec![("BARGE", barge.to_owned())],
        size: 64,
        timeout: Duration::from_secs(3600),
    }
}
