//! The channel of agents, without a guest: `tests/guest/scripts/agent.py` has the kernel's part.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::served::{ServerProcess, stderr_of};

/// An agent that this test plays.
struct FakeAgent {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl FakeAgent {
    fn connect(socket: &Path) -> FakeAgent {
        let stream = UnixStream::connect(socket).expect("connected");
        let timeout = Some(Duration::from_secs(20));
        stream.set_read_timeout(timeout).expect("a timeout");
        FakeAgent {
            lines: BufReader::new(stream.try_clone().expect("cloned")),
            stream,
        }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.stream, "{message}").expect("sent");
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line in time");
        serde_json::from_str(&line).expect("JSON")
    }

    /// Begins a conversation about `share`, and returns the challenge.
    fn hello(&mut self, share: &str) -> Value {
        let hello = json!({"version": 1, "share": share, "session": "s"});
        self.send(&json!({ "hello": hello }));
        self.line()["challenge"].take()
    }

    /// Looks up the name of the challenge as its user over 9P.
    fn prove(&mut self, server: &ServerProcess, challenge: &Value) {
        let name = challenge["name"].as_str().expect("a name");
        let path = format!("{name}?uid={}", challenge["uid"]);
        let looked = server.barge(&["stat", "{}"], &path);
        assert!(!looked.status.success(), "{looked:?}");
        self.send(&json!({"found": {"session": "s"}}));
    }

    /// Answers a poke with `done`, and returns it.
    fn poke(&mut self, error: Option<i32>) -> Value {
        let poke = self.line()["poke"].take();
        let mut done = json!({"id": poke["id"]});
        if let Some(error) = error {
            done["error"] = error.into();
        }
        self.send(&json!({ "done": done }));
        poke
    }
}

fn serve(dir: &Path, socket: &Path) -> ServerProcess {
    let (dir, addr) = (
        dir.display().to_string(),
        format!("unix:{}", socket.display()),
    );
    ServerProcess::start(&[&dir, "--agent", &addr])
}

#[test]
fn an_agent_learns_changes_once_it_has_shown_its_mount() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = tempfile::tempdir().expect("a directory");
    let socket = run.path().join("agent");
    let server = serve(dir.path(), &socket);
    let mut agent = FakeAgent::connect(&socket);
    let challenge = agent.hello("");
    agent.prove(&server, &challenge);
    assert_eq!(agent.line(), json!({"ready": {"session": "s"}}));
    let file = dir.path().join("file");
    fs::write(&file, "text").expect("written");
    let created = agent.poke(None);
    let fields = ["action", "path", "kind"].map(|key| created[key].clone());
    assert_eq!(fields, ["create", "file", "file"]);
    let modified = agent.poke(None);
    assert_eq!(
        (&modified["action"], &modified["path"]),
        (&"modify".into(), &"file".into())
    );
    fs::rename(&file, dir.path().join("new")).expect("renamed");
    let renamed = agent.poke(None);
    let fields = ["action", "path", "to"].map(|key| renamed[key].clone());
    assert_eq!(fields, ["rename", "file", "new"]);
    fs::remove_file(dir.path().join("new")).expect("removed");
    // A guest that has noticed the removal: ENOENT.
    let mut removed = agent.poke(Some(2));
    while removed["action"] == "attributes" {
        removed = agent.poke(Some(2));
    }
    assert_eq!(
        (&removed["action"], &removed["path"]),
        (&"delete".into(), &"new".into())
    );
    let actions = [agent.poke(None), agent.poke(None)].map(|poke| poke["action"].clone());
    assert_eq!(actions, ["create", "delete"]);
    assert!(server.stop().success());
}

#[test]
fn an_agent_that_is_no_client_learns_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = tempfile::tempdir().expect("a directory");
    let socket = run.path().join("agent");
    let server = serve(dir.path(), &socket);
    let mut agent = FakeAgent::connect(&socket);
    let refused = |agent: &mut FakeAgent| {
        let line = agent.line();
        line["error"]["message"]
            .as_str()
            .map(str::to_owned)
            .expect("refused")
    };
    agent.send(&json!("junk"));
    agent.send(&json!({"hello": {"version": 2, "share": "", "session": "s"}}));
    assert!(refused(&mut agent).contains("expected version 1"));
    agent.send(&json!({"hello": {"version": 1, "share": "other", "session": "s"}}));
    assert!(refused(&mut agent).contains("expected the name of a share that reports changes"));
    agent.hello("");
    agent.send(&json!({"found": {"session": "s"}}));
    assert!(refused(&mut agent).contains("no mount of this share"));
    // Another conversation over the same connection, as over a serial port.
    let first = agent.hello("");
    let second = agent.hello("");
    assert_ne!(first["uid"], second["uid"]);
    // The user of a challenge changes nothing, announced or not.
    let path = format!("file?uid={}", second["uid"]);
    let source = run.path().join("source");
    fs::write(&source, "text").expect("written");
    let copied = server.barge(&["cp", &source.display().to_string(), "{}"], &path);
    assert!(!copied.status.success(), "{}", stderr_of(&copied));
    assert!(!dir.path().join("file").exists());
    agent.prove(&server, &second);
    assert_eq!(agent.line(), json!({"ready": {"session": "s"}}));
    assert!(server.stop().success());
}
