//! Credentials: `auths` of Docker's `config.json`, in `DOCKER_CONFIG` or `~/.docker`.
//!
//! Credential helpers are other programs, which are not run; a registry that denies access without
//! credentials is reported with the helper that would have them.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use objects::read_bounded;

/// Maximum size in bytes of the file.
const MAX_CONFIG: u64 = 1 << 20;

/// The credentials of a user for a registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    /// None: the user is anonymous.
    Anonymous,
    /// A user and a password.
    Password(String, String),
    /// A token that is exchanged for others (OAuth 2).
    IdentityToken(String),
    /// The name of a credential helper, which is not run.
    Helper(String),
}

/// Returns the file of the user who runs this program.
pub fn default_file() -> Option<PathBuf> {
    let dir = match std::env::var_os("DOCKER_CONFIG") {
        Some(dir) => PathBuf::from(dir),
        None => std::env::home_dir()?.join(".docker"),
    };
    Some(dir.join("config.json"))
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Login::Anonymous => "Anonymous",
            Login::Password(..) => "Password",
            Login::IdentityToken(_) => "IdentityToken",
            Login::Helper(_) => "Helper",
        })
    }
}

impl Login {
    /// Reads the credentials for the registry `host` in the file at `path`. A missing file has
    /// none.
    pub fn read(path: &Path, host: &str) -> io::Result<Login> {
        let failed = |error: &dyn fmt::Display| {
            let line = format!("{}: {error}", path.display());
            io::Error::new(io::ErrorKind::InvalidData, line)
        };
        let text = match read_bounded(path, MAX_CONFIG) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Login::Anonymous),
            Err(error) => return Err(error),
        };
        Login::parse(&text, host).map_err(|error| failed(&error))
    }

    /// Returns the credentials for the registry `host` in `config.json`. The error has no secrets.
    pub fn parse(text: &[u8], host: &str) -> Result<Login, String> {
        let config: Value = serde_json::from_slice(text)
            .map_err(|error| format!("invalid JSON at line {}", error.line()))?;
        let empty = serde_json::Map::new();
        let auths = config["auths"].as_object().unwrap_or(&empty);
        let entry = auths.get(host).or_else(|| {
            let named = auths.iter().find(|(key, _)| host_of(key) == host);
            named.map(|(_, entry)| entry)
        });
        let text = |name: &str| {
            let text = entry.and_then(|entry| entry[name].as_str());
            text.filter(|text| !text.is_empty())
        };
        if let Some(token) = text("identitytoken") {
            return Ok(Login::IdentityToken(token.to_owned()));
        }
        if let Some(auth) = text("auth") {
            let invalid =
                || format!("expected user and password in Base64 in the auth of '{host}'");
            let bytes = STANDARD.decode(auth.trim()).map_err(|_| invalid())?;
            let pair = String::from_utf8(bytes).map_err(|_| invalid())?;
            let (user, password) = pair.split_once(':').ok_or_else(invalid)?;
            // Old versions of Docker append zeros.
            let password = password.trim_end_matches('\0');
            return Ok(Login::Password(user.to_owned(), password.to_owned()));
        }
        if let (Some(user), Some(password)) = (text("username"), text("password")) {
            return Ok(Login::Password(user.to_owned(), password.to_owned()));
        }
        let helper = config["credHelpers"][host].as_str();
        let helper = helper.or(config["credsStore"].as_str());
        Ok(match helper.filter(|helper| !helper.is_empty()) {
            Some(helper) => Login::Helper(helper.to_owned()),
            None => Login::Anonymous,
        })
    }
}

/// Returns the host in a key of `auths`, which may be a URL.
fn host_of(key: &str) -> &str {
    let rest = key.strip_prefix("https://").or(key.strip_prefix("http://"));
    let rest = rest.unwrap_or(key);
    rest.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_found_by_its_host() {
        let config = br#"{
            "auths": {
                "https://one:5000/v1/": {"auth": "dXNlcjpwYTpzcwA="},
                "two": {"auth": "", "identitytoken": "token"},
                "three": {"username": "u", "password": "p"},
                "four": {},
                "five": {"auth": "!"},
                "six": {"auth": "dXNlcg=="}
            },
            "credHelpers": {"seven": "ecr-login"},
            "credsStore": "desktop"
        }"#;
        let parse = |host: &str| Login::parse(config, host);
        let password =
            |user: &str, password: &str| Ok(Login::Password(user.into(), password.into()));
        assert_eq!(parse("one:5000"), password("user", "pa:ss"));
        assert_eq!(parse("two"), Ok(Login::IdentityToken("token".into())));
        assert_eq!(parse("three"), password("u", "p"));
        assert_eq!(parse("four"), Ok(Login::Helper("desktop".into())));
        assert_eq!(parse("seven"), Ok(Login::Helper("ecr-login".into())));
        assert_eq!(parse("one"), Ok(Login::Helper("desktop".into())));
        for host in ["five", "six"] {
            assert!(parse(host).expect_err("invalid").contains("Base64"));
        }
        for text in [&b"{}"[..], br#"{"auths": []}"#, br#"[1]"#, b"0"] {
            assert_eq!(Login::parse(text, "h"), Ok(Login::Anonymous));
        }
        assert!(Login::parse(b"{", "h").is_err());
        let shown = format!("{:?}", parse("one:5000"));
        assert!(!shown.contains("pa:ss"), "{shown}");
    }
}
