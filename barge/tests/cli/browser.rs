//! Chromium, controlled with its debugging protocol over a pipe.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use vfs_testkit::wait_until;

/// A headless Chromium with an empty profile.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    calls: u64,
    /// Errors that its pages logged.
    pub(crate) complaints: Vec<Value>,
    /// The URLs that its pages requested.
    pub(crate) wanted: Vec<String>,
}

impl Browser {
    pub(crate) fn start(dir: &Path) -> Browser {
        // The protocol uses descriptors 3 and 4.
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
            wanted: Vec::new(),
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
            } else if method == "Network.requestWillBeSent" {
                let url = &message["params"]["request"]["url"];
                self.wanted.push(url.as_str().expect("an address").into());
            }
        }
    }

    /// Opens a page as on `device`, and waits until it has loaded.
    pub(crate) fn open(&mut self, device: &Device, url: &str) -> Tab<'_> {
        let target = self.call(None, "Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = self.call(None, "Target.attachToTarget", attach);
        let session = session["sessionId"].as_str().expect("a session").to_owned();
        let mut tab = Tab {
            browser: self,
            session,
        };
        for domain in ["Runtime", "Log", "Network"] {
            tab.call(&format!("{domain}.enable"), json!({}));
        }
        let metrics = json!({
            "width": device.width, "height": device.height, "deviceScaleFactor": 1, "mobile": device.width < 500,
        });
        tab.call("Emulation.setDeviceMetricsOverride", metrics);
        let features = json!([{ "name": "prefers-color-scheme", "value": device.scheme }]);
        tab.call(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
        tab.call("Page.navigate", json!({ "url": url }));
        // The previous page may still be the one that answers.
        let there = "document.readyState === 'complete' && location.protocol !== 'about:'";
        wait_until("the page is there", || tab.evaluate(there) == true);
        tab
    }
}

/// A screen and colour scheme to show pages with.
pub(crate) struct Device {
    pub(crate) name: &'static str,
    pub(crate) width: u32,
    height: u32,
    scheme: &'static str,
}

impl Device {
    /// A desktop and a phone, each with the light and the dark scheme.
    pub(crate) const ALL: [Device; 4] = [
        Device::new("desk", 1440, 1000, "light"),
        Device::new("phone", 390, 844, "dark"),
        Device::new("desk-dark", 1440, 1000, "dark"),
        Device::new("phone-light", 390, 844, "light"),
    ];

    const fn new(name: &'static str, width: u32, height: u32, scheme: &'static str) -> Device {
        Device {
            name,
            width,
            height,
            scheme,
        }
    }
}

/// An open page.
pub(crate) struct Tab<'a> {
    browser: &'a mut Browser,
    session: String,
}

impl Tab<'_> {
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.browser.call(Some(&self.session), method, params)
    }

    /// Returns the value of a script.
    pub(crate) fn evaluate(&mut self, script: &str) -> Value {
        let script = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
        self.call("Runtime.evaluate", script)["result"]["value"].clone()
    }

    /// Saves a screenshot to `BARGE_SCREENSHOTS`, if that is set.
    pub(crate) fn shoot(&mut self, name: &str) {
        let Some(dir) = std::env::var_os("BARGE_SCREENSHOTS") else {
            return;
        };
        let whole = json!({ "captureBeyondViewport": true });
        let shot = self.call("Page.captureScreenshot", whole)["data"].clone();
        let shot = base64::Engine::decode(
            &base64::prelude::BASE64_STANDARD,
            shot.as_str().expect("a picture"),
        );
        let path = Path::new(&dir).join(format!("{name}.png"));
        std::fs::write(path, shot.expect("base64")).expect("written");
    }

    /// Leaves the page, which ends its scripts and connections.
    pub(crate) fn close(mut self) {
        self.call("Page.navigate", json!({ "url": "about:blank" }));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
