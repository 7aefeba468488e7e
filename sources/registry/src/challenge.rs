//! `WWW-Authenticate` (RFC 9110, section 11.6.1): authentication challenges of
//! registries.

/// Maximum number of characters of a header that is parsed.
const MAX_HEADER: usize = 8192;

/// A challenge that this client can answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// User and password with each request.
    Basic,
    /// A token of the server at `realm` (distribution's token authentication).
    Bearer {
        /// The URL of the token server.
        realm: String,
        /// The service that the token is for.
        service: Option<String>,
        /// The access that the token grants.
        scope: Option<String>,
    },
}

impl Challenge {
    /// Returns the strongest challenge in the value of a header that this client can answer.
    pub fn parse(header: &str) -> Option<Challenge> {
        if header.len() > MAX_HEADER {
            return None;
        }
        let mut scheme = String::new();
        let mut parameters: Vec<(String, String)> = Vec::new();
        let mut found = Vec::new();
        let mut rest = header.trim_start();
        while !rest.is_empty() {
            let end = rest.find(|c: char| !is_token(c)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            let after = after.trim_start();
            if word.is_empty() {
                // Commas separate parameters and challenges alike; other text ends the header.
                match after.strip_prefix(',') {
                    Some(after) => rest = after.trim_start(),
                    None => break,
                }
                continue;
            }
            match after.strip_prefix('=') {
                Some(value) if !scheme.is_empty() => {
                    let Some((value, after)) = parse_value(value.trim_start()) else {
                        break;
                    };
                    parameters.push((word.to_ascii_lowercase(), value));
                    rest = after.trim_start();
                }
                Some(_) => break,
                None => {
                    found.extend(Challenge::new(&scheme, &mut parameters));
                    scheme = word.to_ascii_lowercase();
                    rest = after;
                }
            }
        }
        found.extend(Challenge::new(&scheme, &mut parameters));
        let bearer = found.iter().position(|one| *one != Challenge::Basic);
        match bearer {
            Some(at) => Some(found.swap_remove(at)),
            None => found.pop(),
        }
    }

    fn new(scheme: &str, parameters: &mut Vec<(String, String)>) -> Option<Challenge> {
        let mut parameters = std::mem::take(parameters);
        let mut take = |name: &str| {
            let at = parameters.iter().position(|(other, _)| other == name)?;
            Some(parameters.swap_remove(at).1)
        };
        match scheme {
            "basic" => Some(Challenge::Basic),
            "bearer" => Some(Challenge::Bearer {
                realm: take("realm")?,
                service: take("service"),
                scope: take("scope"),
            }),
            _ => None,
        }
    }
}

/// Parses a token or a quoted string, and returns it with the text after it.
fn parse_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(|c: char| !is_token(c)).unwrap_or(text.len());
        return Some((text[..end].to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            c => value.push(c),
        }
    }
    None
}

fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Option<Challenge> {
        Some(Challenge::Bearer {
            realm: realm.into(),
            service: service.map(str::to_owned),
            scope: scope.map(str::to_owned),
        })
    }

    #[test]
    fn the_strongest_known_challenge_is_taken() {
        let full = bearer("https://a/t", Some("s"), Some("repository:x/y:pull,push"));
        for (header, challenge) in [
            (
                r#"Bearer realm="https://a/t",service="s",scope="repository:x/y:pull,push""#,
                full.clone(),
            ),
            (
                r#"bearer Realm = "https://a/t" , SERVICE=s, scope="repository:x/y:pull,push", error="invalid_token""#,
                full.clone(),
            ),
            (
                r#"Basic realm="x", Bearer realm="https://a/t""#,
                bearer("https://a/t", None, None),
            ),
            (
                r#"Bearer realm="https://a/t", Basic realm=x"#,
                bearer("https://a/t", None, None),
            ),
            (r#"Basic realm="a \"b\", Bearer""#, Some(Challenge::Basic)),
            ("Negotiate, Basic", Some(Challenge::Basic)),
            ("Bearer service=x", None),
            (r#"Bearer realm="unfinished"#, None),
            ("Digest realm=x", None),
            ("=x", None),
            ("", None),
        ] {
            assert_eq!(Challenge::parse(header), challenge, "{header}");
        }
        assert_eq!(
            Challenge::parse(&format!("Basic{}", " ".repeat(9000))),
            None
        );
    }

    proptest! {
        #[test]
        fn any_header_is_a_challenge_or_none(header in "(Basic|Bearer|realm|[\",=\\\\ é])*") {
            Challenge::parse(&header);
        }
    }
}
