//! The status page in a browser.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use barge_client::Client;
use serde_json::Value;

use super::{ask, http};
use crate::browser::{Browser, Device};
use crate::served::{ServerProcess, has};

/// A script that returns the text of the page once it is live and has figures of several snapshots.
const SEEN: &str = r#"new Promise(done => {
    let looks = 0;
    const seen = new MutationObserver(() => {
        if (document.getElementById("state").className !== "live" || ++looks < 3) return;
        seen.disconnect();
        done({
            text: document.body.innerText,
            fits: document.documentElement.scrollWidth <= innerWidth,
            width: innerWidth,
            line: document.querySelector(".line").getAttribute("d"),
        });
    });
    seen.observe(document.getElementById("tiles"), { childList: true });
})"#;

#[test]
fn a_browser_shows_it_under_load_on_a_desk_and_on_a_phone() {
    if !has("chromium") {
        eprintln!("skipped: chromium is missing (Debian's package chromium)");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let share = dir.path().join("share");
    std::fs::create_dir(&share).expect("made");
    std::fs::write(share.join("file"), vec![7; 300_000]).expect("written");
    let served = ServerProcess::start(&[share.to_str().expect("a name"), "--http", "0"]);
    let at = http(&served);
    let frame = ask(
        &at,
        format!("GET / HTTP/1.1\r\nHost: {at}\r\n\r\n").as_bytes(),
    );
    assert!(
        frame.contains("Content-Security-Policy: default-src 'none'; script-src 'sha256-"),
        "{frame:.900}"
    );
    let url = format!("9p://127.0.0.1:{}/", served.port());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let client = Client::open(&url).expect("a client");
                while !over.load(Ordering::Relaxed) {
                    client.read("file").expect("read");
                    assert!(client.read("no such file").is_err());
                }
            });
        }
        let seen = std::panic::catch_unwind(|| look(&at, &dir.path().join("profile")));
        over.store(true, Ordering::Relaxed);
        if let Err(panic) = seen {
            std::panic::resume_unwind(panic);
        }
    });
}

fn look(at: &str, profile: &Path) {
    let mut browser = Browser::start(profile);
    for device in Device::ALL {
        let mut tab = browser.open(&device, &format!("http://{at}/"));
        let seen = tab.evaluate(SEEN);
        tab.shoot(device.name);
        let name = device.name;
        assert_eq!(
            (&seen["width"], &seen["fits"]),
            (&device.width.into(), &true.into()),
            "{name}: {seen}"
        );
        let text = seen["text"].as_str().expect("text");
        for part in [
            "Tread",
            "Twalk",
            "ENOENT",
            "127.0.0.1",
            "9P2000.L",
            "live",
            "µs",
        ] {
            assert!(text.contains(part), "{name}: {part} in {text}");
        }
        assert!(
            seen["line"].as_str().is_some_and(|line| line.contains('L')),
            "{name}: {seen}"
        );
        tab.close();
    }
    assert_eq!(browser.complaints, [Value::Null; 0]);
}
