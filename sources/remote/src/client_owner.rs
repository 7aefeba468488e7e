//! The name by which servers tell a client from others: the client owner of NFSv4 (`co_ownerid`,
//! RFC 8881, section 2.4), and the client ID in lock requests of 9P.
//!
//! A server takes two clients of one name for one client that has restarted, and ends the state of
//! the first. A name is therefore random, and nothing of it depends on the process, which is number
//! 1 of its namespace in every mount of root. Keeping a name for a later process is deliberately
//! elsewhere.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::sync::Arc;

/// The name of a client. A clone is the same client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOwner(Arc<str>);

impl ClientOwner {
    /// The most bytes of a host's name in it: what Linux permits (`__NEW_UTS_LEN`).
    const MAX_HOST: usize = 64;

    /// The maximum length in bytes, which 9P servers accept, too.
    pub const MAX_LEN: usize = 128;

    /// Returns a name that no other client has.
    pub fn random() -> ClientOwner {
        ClientOwner::with_id((u128::from(random()) << 64) | u128::from(random()))
    }

    /// Returns the name of the client of this host that has the ID `id`, which must be as good as
    /// random.
    pub fn with_id(id: u128) -> ClientOwner {
        let host = sys::process::host_name();
        // The host's name is for administrators of the server.
        let host: String = host
            .chars()
            .filter(char::is_ascii_graphic)
            .take(ClientOwner::MAX_HOST)
            .collect();
        ClientOwner(format!("{host}/barge/{id:032x}").into())
    }

    /// The text that is sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether this is not the only clone.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl fmt::Display for ClientOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The error for a text that is not the name of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadClientOwner;

impl fmt::Display for BadClientOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected HOST/barge/ and 32 hexadecimal digits")
    }
}

impl std::error::Error for BadClientOwner {}

impl FromStr for ClientOwner {
    type Err = BadClientOwner;

    fn from_str(text: &str) -> Result<ClientOwner, BadClientOwner> {
        let id = text.rsplit_once("/barge/").map(|(_, id)| id);
        let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        let valid = id.is_some_and(|id| id.len() == 32 && id.chars().all(is_digit))
            && text.len() <= ClientOwner::MAX_LEN
            && text.chars().all(|c| c.is_ascii_graphic());
        if valid {
            Ok(ClientOwner(text.into()))
        } else {
            Err(BadClientOwner)
        }
    }
}

/// Returns a random number, on every system. The standard library seeds it from the system.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clients_have_two_names() {
        let (one, other) = (ClientOwner::random(), ClientOwner::random());
        assert_ne!(one, other);
        assert_eq!(one.as_str().parse(), Ok(one.clone()));
        assert_eq!(ClientOwner::with_id(7), ClientOwner::with_id(7));
        assert!(!one.is_shared() && one.clone().is_shared());
    }

    #[test]
    fn other_texts_are_no_names() {
        let id = "0123456789abcdef0123456789abcdef";
        assert!(format!("h/barge/{id}").parse::<ClientOwner>().is_ok());
        for text in [
            "",
            "h/barge/1/0",
            &format!("h/barge/{}", id.to_uppercase()),
            &format!("h/barge/{id}\n"),
            &format!("h h/barge/{id}"),
            &format!("{}/barge/{id}", "h".repeat(100)),
        ] {
            assert_eq!(text.parse::<ClientOwner>(), Err(BadClientOwner), "{text}");
        }
    }
}
