//! The channel between an agent and its server: lines, each with a JSON object.
//!
//! The agent begins with [`Hello`], and the server sends [`Challenge`]. The agent acts as the user
//! of the challenge from now on, looks up its name in the mount, and sends [`Found`]. After
//! [`Ready`], the server sends one [`Poke`] at a time, which the agent answers with [`Done`]. A
//! further hello begins a new conversation: over a serial port the agent may have been started
//! again. `docs/design/notification.md` describes all of it.

use serde::{Deserialize, Serialize};

/// The version of the protocol. Further keys do not change it: they are ignored.
pub const VERSION: u32 = 1;

/// Maximum length of a line in bytes, with its newline: two paths and the target of a symbolic
/// link, each byte as a number.
pub const MAX_LINE: usize = 1 << 16;

/// A line of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromAgent {
    /// The first line.
    Hello(Hello),
    /// The challenge was looked up.
    Found(Found),
    /// A poke was carried out, or failed.
    Done(Done),
}

/// The first line of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// The name of the share; empty for the only one without a name.
    pub share: String,
    /// A random text, which the replies repeat: lines before them are of an earlier conversation.
    pub session: String,
}

/// The result of the challenge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The conversation.
    pub session: String,
}

/// The result of a poke.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// The number of the poke.
    pub id: u64,
    /// The error number of the system call that failed; absent if none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<i32>,
}

/// A line of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromServer {
    /// The reply to a hello.
    Challenge(Challenge),
    /// All changes from now on are reported.
    Ready(Ready),
    /// A request to repeat a change.
    Poke(Poke),
    /// The conversation is over.
    Error(Refused),
}

/// A name to look up as a user, with which the agent shows that it has mounted the share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// The conversation.
    pub session: String,
    /// The user id that the agent's requests have to have.
    pub uid: u32,
    /// The name to look up in the root of the share.
    pub name: String,
}

/// The beginning of notification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The conversation.
    pub session: String,
}

/// The reason why a conversation ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The message, one line.
    pub message: String,
}

/// A change to repeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Poke {
    /// Its number, which [`Done`] repeats.
    pub id: u64,
    /// The operation.
    #[serde(flatten)]
    pub action: Action,
}

/// An operation on a mount. Paths are below the root of the share, and empty for the root itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum Action {
    /// Create an object.
    Create {
        /// The path.
        path: Bytes,
        /// Its type.
        kind: ObjectKind,
        /// The target of a symbolic link.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<Bytes>,
    },
    /// Set the time of last modification, as a change of contents does.
    Modify {
        /// The path.
        path: Bytes,
    },
    /// Set both times, as a change of attributes.
    Attributes {
        /// The path.
        path: Bytes,
    },
    /// Rename an object.
    Rename {
        /// The old path.
        path: Bytes,
        /// The new path.
        to: Bytes,
    },
    /// Remove an object.
    Delete {
        /// The path.
        path: Bytes,
        /// Whether it is a directory.
        is_dir: bool,
    },
    /// Changes were lost.
    Overflow,
    /// No operation: the server checks that the agent answers.
    None,
}

/// The type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// A path: a string, or numbers if it is not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Bytes {
    /// UTF-8.
    Text(String),
    /// Other bytes.
    Numbers(Vec<u8>),
}

impl Bytes {
    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Bytes::Text(text) => text.as_bytes(),
            Bytes::Numbers(numbers) => numbers,
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        match String::from_utf8(bytes) {
            Ok(text) => Bytes::Text(text),
            Err(error) => Bytes::Numbers(error.into_bytes()),
        }
    }
}

/// Returns `message` as a line.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    // Strings, numbers and booleans can always be written.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Parses a line of an agent, without its newline. The error is for people.
pub fn parse_from_agent(line: &[u8]) -> Result<FromAgent, String> {
    serde_json::from_slice(line).map_err(|error| error.to_string())
}

/// Parses a line of a server, without its newline. The error is for people.
pub fn parse_from_server(line: &[u8]) -> Result<FromServer, String> {
    serde_json::from_slice(line).map_err(|error| error.to_string())
}

/// Received bytes, as lines.
#[derive(Debug, Default)]
pub struct Lines {
    buffer: Vec<u8>,
    /// Number of bytes at the start of `buffer` that have no newline.
    searched: usize,
}

/// The error for a line longer than [`MAX_LINE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl Lines {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete line without its newline. Returns an error if it is too long.
    pub fn next_line(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        let unsearched = &self.buffer[self.searched..];
        let end = unsearched.iter().position(|&byte| byte == b'\n');
        let end = end.map(|at| self.searched + at);
        if end.unwrap_or(self.buffer.len()) >= MAX_LINE {
            return Err(TooLong);
        }
        let Some(end) = end else {
            self.searched = self.buffer.len();
            return Ok(None);
        };
        let rest = self.buffer.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.buffer, rest);
        self.searched = 0;
        line.pop();
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_documented() {
        let poke = |action| FromServer::Poke(Poke { id: 7, action });
        for (message, line) in [
            (
                poke(Action::Create {
                    path: b"a/b".to_vec().into(),
                    kind: ObjectKind::Symlink,
                    target: Some(b"\xff".to_vec().into()),
                }),
                r#"{"poke":{"id":7,"action":"create","path":"a/b","kind":"symlink","target":[255]}}"#,
            ),
            (
                poke(Action::Delete {
                    path: b"a".to_vec().into(),
                    is_dir: true,
                }),
                r#"{"poke":{"id":7,"action":"delete","path":"a","is_dir":true}}"#,
            ),
            (poke(Action::None), r#"{"poke":{"id":7,"action":"none"}}"#),
        ] {
            let encoded = encode(&message);
            assert_eq!(String::from_utf8_lossy(&encoded), format!("{line}\n"));
            assert_eq!(parse_from_server(line.as_bytes()), Ok(message));
        }
        let done = FromAgent::Done(Done { id: 7, error: None });
        assert_eq!(encode(&done), b"{\"done\":{\"id\":7}}\n");
        assert_eq!(parse_from_agent(br#"{"done":{"id":7,"new":1}}"#), Ok(done));
        assert!(parse_from_agent(b"{}").is_err() && parse_from_agent(b"\xff").is_err());
    }

    #[test]
    fn lines_may_arrive_in_pieces_and_together() {
        let mut lines = Lines::default();
        lines.push(b"on");
        assert_eq!(lines.next_line(), Ok(None));
        lines.push(b"e\ntwo\n");
        assert_eq!(lines.next_line(), Ok(Some(b"one".to_vec())));
        assert_eq!(lines.next_line(), Ok(Some(b"two".to_vec())));
        assert_eq!(lines.next_line(), Ok(None));
        lines.push(&[b'x'; MAX_LINE - 1]);
        assert_eq!(lines.next_line(), Ok(None));
        lines.push(b"x\n");
        assert_eq!(lines.next_line(), Err(TooLong));
    }
}
