//! Page-cache pages sent without copying, followed by XDR padding.

use remote::nfs::Options;

use super::net::Served;
use crate::pages::{directory, read_while_it_changes};

#[test]
fn a_file_that_is_cut_while_it_is_sent_loses_nobody() {
    for version in [(3, 0), (4, 1), (4, 2)] {
        let (dir, fs) = directory(600_000);
        let served = Served::over(fs);
        let tree = served.mount(Options {
            version: Some(version),
            ..Options::default()
        });
        read_while_it_changes(dir.path(), &*tree);
    }
}
