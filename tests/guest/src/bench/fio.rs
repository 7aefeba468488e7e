//! 9P goes through QEMU's network, which is emulated; virtiofs goes through shared memory.

use std::path::Path;
use std::time::Duration;

use super::Subject;
use crate::quote;
use crate::ways::{Way, beside};

pub(super) fn subject(barge: &str, rounds: u16, seconds: u16, virtiofsd: Option<&Path>) -> Subject {
    let (nine, virtiofs) = (Way::named("none"), Way::named("virtiofs"));
    // As much in a message as Linux takes over TCP.
    let mut seat = nine.seat(&["msize=1048576".into()]);
    seat.qemu = virtiofs.device("barge");
    let mut tags = "barge".to_owned();
    let addresses = [nine.address(), virtiofs.address()].join(" ");
    let mut serve = vec![format!("{barge} serve {{share}} {addresses}")];
    if let Some(virtiofsd) = virtiofsd {
        let virtiofsd = quote(&virtiofsd.display().to_string());
        // By default without extended attributes: a guest does not look for file capabilities
        // before writes.
        let command =
            format!("{virtiofsd} --sandbox none --shared-dir {{share}} --socket-path {{socket2}}");
        // It ends with its guest, which a server of a run does not.
        let lasting = quote(&format!("{command}; exec sleep infinity"));
        serve.push(format!("sh -c {lasting}"));
        seat.qemu
            .extend(virtiofs.device("virtiofsd").iter().map(|text| beside(text)));
        tags += ",virtiofsd";
    }
    // Three servers at most, four loads, and as long again for what is around them.
    let turns = 1 + u64::from(rounds);
    Subject {
        name: "fio",
        serve,
        seat,
        env: vec![("TAGS", tags), ("SECONDS", seconds.to_string())],
        size: 256,
        timeout: Duration::from_secs(2 * 3 * 4 * turns * u64::from(seconds) + 120),
    }
}
