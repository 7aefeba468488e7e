//! SIGHUP: reads certificates and the configuration file again, and changes the running set.

use std::sync::Arc;

use super::live::LiveServer;
use super::operation::Operation;
use crate::signals::Reload;

/// Returns the handler of SIGHUP, or `None` if there is nothing to read again. `operation` is that
/// of the first process. With a control socket (`controlled`), that process makes all changes.
pub(super) fn handler(
    live: Arc<LiveServer>,
    operation: Option<&Operation>,
    controlled: bool,
) -> Option<Reload> {
    let controller = operation.map(|operation| operation.controller().clone());
    live.is_reloadable().then(|| -> Reload {
        Box::new(move || {
            if let Some(controller) = controller.as_ref().and_then(|it| it.get()) {
                controller.reload_on_signal();
            } else if controller.is_some() || !controlled {
                live.host().report_reloading();
                live.host().report_reloaded(live.reload());
            }
        })
    })
}
