//! SIGHUP: reads certificates and the configuration file again, and changes the running set.

use std::sync::Arc;

use super::live::LiveServer;
use crate::signals::Reload;

/// Returns the handler of SIGHUP, or `None` if there is nothing to read again.
pub(super) fn handler(live: Arc<LiveServer>) -> Option<Reload> {
    live.is_reloadable().then(|| -> Reload {
        Box::new(move || {
            live.host().report_reloading();
            let status = live.reload();
            live.host().report_reloaded(&status);
        })
    })
}
