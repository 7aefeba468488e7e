//! The status page in a browser: Chromium, spoken to by its debugging protocol through a pipe.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use barge_client::Client;
use serde_json::{Value, json};

use super::{ask, http};
use crate::served::{Served, has};

/// Chromium, without a window, that knows nothing and keeps nothing.
struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    calls: u64,
    /// What its pages complained of.
    complaints: Vec<Value>,
}

impl Browser {
    fn start(dir: &Path) -> Browser {
        // The protocol comes by the descriptors 3 and 4.
        let mut command = Command::new("sh");
        command
            .args(["-c", r#"exec chromium "$@" 3<&0 4>&1"#, "sh"])
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
            ])
            .args(["--no-first-run", "--disable-background-networking"])
            .args([
                "--disable-component-update",
                "--disable-sync",
                "--disable-dev-shm-usage",
            ])
            .args(["--remote-debugging-pipe", "about:blank"])
            .arg(format!("--user-data-dir={}", dir.display()));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("starts");
        Browser {
            to: child.stdin.take().expect("piped"),
            from: BufReader::new(child.stdout.take().expect("piped")),
            child,
            calls: 0,
            complaints: Vec::new(),
        }
    }

    fn call(&mut self, session: Option<&str>, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        write!(self.to, "{message}\0").expect("asked");
        loop {
            let mut bytes = Vec::new();
            self.from.read_until(0, &mut bytes).expect("a message");
            assert_eq!(bytes.pop(), Some(0), "it ended");
            let message: Value = serde_json::from_slice(&bytes).expect("JSON");
            if message["id"] == self.calls {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            let method = message["method"].as_str().unwrap_or_default();
            if [
                "Runtime.exceptionThrown",
                "Runtime.consoleAPICalled",
                "Log.entryAdded",
            ]
            .contains(&method)
            {
                self.complaints.push(message);
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the page says once it is live and its figures are of more than one look.
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
    let served = Served::start(&[share.to_str().expect("a name"), "--http", "0"]);
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
    for (name, width, height, scheme) in [
        ("desk", 1280, 1000, "light"),
        ("phone", 390, 844, "dark"),
        ("desk-dark", 1280, 1000, "dark"),
        ("phone-light", 390, 844, "light"),
    ] {
        let target = browser.call(None, "Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call(None, "Target.attachToTarget", attach);
        let session = session["sessionId"].as_str().expect("a session").to_owned();
        let mut call = |method: &str, params| browser.call(Some(&session), method, params);
        call("Runtime.enable", json!({}));
        call("Log.enable", json!({}));
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        call("Emulation.setDeviceMetricsOverride", metrics);
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        call(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
        call("Page.navigate", json!({ "url": format!("http://{at}/") }));
        // The page that was there before may still be the one that is asked.
        let there = "document.readyState === 'complete' && location.protocol === 'http:'";
        while call("Runtime.evaluate", json!({ "expression": there }))["result"]["value"] != true {
            std::thread::yield_now();
        }
        let seen = json!({ "expression": SEEN, "awaitPromise": true, "returnByValue": true });
        let seen = call("Runtime.evaluate", seen)["result"]["value"].clone();
        if let Some(dir) = std::env::var_os("BARGE_SCREENSHOTS") {
            let whole = json!({ "captureBeyondViewport": true });
            let shot = call("Page.captureScreenshot", whole)["data"].clone();
            let shot = base64::Engine::decode(
                &base64::prelude::BASE64_STANDARD,
                shot.as_str().expect("a picture"),
            );
            let path = Path::new(&dir).join(format!("{name}.png"));
            std::fs::write(path, shot.expect("base64")).expect("written");
        }
        assert_eq!(
            (&seen["width"], &seen["fits"]),
            (&width.into(), &true.into()),
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
        call("Page.navigate", json!({ "url": "about:blank" }));
    }
    assert_eq!(browser.complaints, [Value::Null; 0]);
}
