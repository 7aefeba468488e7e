//! The introduction for a user who named no address: prints the sources, how to use them from this
//! host, and how to stop the server. All lines are comments or commands of a shell.

use super::endpoints::p9;
use super::exports::Exports;
use super::plan::Plan;

/// Returns the text before and the text after the mount commands, for a server at the default
/// address of 9P.
pub(super) fn introduction(exports: &Exports, plan: &Plan) -> [String; 2] {
    let url = p9::default_url();
    let sources: Vec<_> = (plan.sources.shares.iter())
        .map(|share| share.named.source.shown().to_string())
        .collect();
    let whole = &exports.default.fs;
    text(
        &sources.join(", "),
        whole.capabilities().read_only,
        &url,
        &program(),
    )
}

fn text(sources: &str, read_only: bool, url: &str, barge: &str) -> [String; 2] {
    let how = match read_only {
        true => "read-only",
        false => "read-write",
    };
    let behind = format!(
        "# or as any user, without a driver or with FUSE:\n\
         {barge} ls -l {url}\n\
         mkdir -p ~/mnt && {barge} mount {url} ~/mnt\n\
         # Ctrl-C stops the server; '{barge} help serve' lists other addresses and protocols\n"
    );
    let before = format!(
        "# {sources}: {how}, for this host and its guests only (10.0.2.2 in QEMU's user network). Mount it as root:\n"
    );
    [before, behind]
}

/// Returns the name that this program was called by if it is a path, as a program that cargo has
/// built is not in PATH.
fn program() -> String {
    let called = std::env::args().next();
    called
        .filter(|name| name.contains('/') && !name.contains(char::is_whitespace))
        .unwrap_or_else(|| "barge".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_is_served_and_what_to_do() {
        let [before, behind] = text("., mem:", true, "9p://[::1]:5640/", "a/barge");
        assert!(before.starts_with("# ., mem:: read-only, "));
        let commands: Vec<_> = behind
            .lines()
            .filter(|line| !line.starts_with('#'))
            .collect();
        assert_eq!(
            commands,
            [
                "a/barge ls -l 9p://[::1]:5640/",
                "mkdir -p ~/mnt && a/barge mount 9p://[::1]:5640/ ~/mnt"
            ]
        );
        assert!(behind.contains("Ctrl-C stops the server"));
        assert!(text("d", false, "", "barge")[0].contains("read-write"));
    }
}
