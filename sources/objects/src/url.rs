//! URLs of objects.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;

use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;

use crate::image_options::{CacheQuery, ImageOptions};
use crate::rules::{is_account, is_bucket, is_container, parse_url};
use crate::settings::BUCKETS;

/// An object in a store: `s3://BUCKET/KEY`, `gs://BUCKET/KEY` or `az://CONTAINER@ACCOUNT/KEY`, each
/// optionally followed by `?OPTION=VALUE&…`; or `http://…` or `https://…`, where the query is sent
/// to the server. Without `@ACCOUNT` the account is an option.
///
/// Options are named like the environment variables in lower case, with or without their common
/// prefix: `endpoint` or `aws_endpoint` is `AWS_ENDPOINT_URL`. They take precedence over the
/// environment. `cache_dir` and `cache_dir_size` configure the disk cache.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    scheme: Scheme,
    /// For HTTP, the host and everything else before the path.
    bucket: String,
    /// For Azure, if the URL names it.
    account: Option<String>,
    key: String,
    /// For HTTP, including the question mark.
    query: String,
    options: Vec<(String, String)>,
    image: ImageOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    S3,
    Google,
    Azure,
    Http,
    Https,
}

impl Scheme {
    /// Returns whether the store has options, in the URL and in the environment.
    pub(crate) fn is_cloud(self) -> bool {
        !matches!(self, Scheme::Http | Scheme::Https)
    }

    /// Returns the client library's name of an option of this kind of store.
    pub(crate) fn option(self, name: &str) -> Option<String> {
        match self {
            Scheme::S3 => known::<AmazonS3ConfigKey>(name),
            Scheme::Google => known::<GoogleConfigKey>(name),
            Scheme::Azure => known::<AzureConfigKey>(name),
            Scheme::Http | Scheme::Https => None,
        }
    }

    /// Returns the option that a variable of the environment sets.
    pub(crate) fn variable(self, name: &str) -> Option<String> {
        let prefix = match (self, name) {
            (Scheme::Google, "SERVICE_ACCOUNT") => return Some("google_service_account".into()),
            (Scheme::Azure, "IDENTITY_ENDPOINT") => return Some("azure_msi_endpoint".into()),
            (Scheme::S3, _) => "AWS_",
            (Scheme::Google, _) => "GOOGLE_",
            (Scheme::Azure, _) => "AZURE_",
            (Scheme::Http | Scheme::Https, _) => return None,
        };
        name.starts_with(prefix)
            .then(|| self.option(&name.to_ascii_lowercase()))?
    }
}

/// The options of stores that are paths of this host, by the library's names.
const PATHS: &[&str] = &[
    "aws_container_authorization_token_file",
    "aws_web_identity_token_file",
    "azure_federated_token_file",
    "google_application_credentials",
    "google_service_account",
];

/// Returns whether the value of an environment variable with this name is a path of this host.
pub fn is_path_variable(name: &str) -> bool {
    let mut stores = [Scheme::S3, Scheme::Google, Scheme::Azure].into_iter();
    stores.any(|store| {
        let option = store.variable(name);
        option.is_some_and(|option| PATHS.contains(&&*option))
    })
}

fn known<K: FromStr + AsRef<str>>(name: &str) -> Option<String> {
    let key: K = name.parse().ok()?;
    Some(key.as_ref().to_owned())
}

/// The error for a text that is not an object's URL, with the expected syntax.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadUrl(String);

impl fmt::Display for BadUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadUrl {}

impl FromStr for Url {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Url, BadUrl> {
        // The part after a question mark may be a secret.
        let shown = text.split('?').next().unwrap_or_default();
        let bad = |expected: &str| BadUrl(format!("bad source '{shown}': expected {expected}"));
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad("a URL"))?;
        let scheme = match scheme {
            "s3" => Scheme::S3,
            "gs" => Scheme::Google,
            "az" => Scheme::Azure,
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(bad("s3://, gs://, az://, http:// or https://")),
        };
        let (path, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        // As with any image, a trailing slash names the image's root directory.
        let key = key.trim_end_matches('/');
        if bucket.is_empty() || key.is_empty() {
            return Err(bad(match scheme {
                Scheme::Http | Scheme::Https => "a host and a path",
                _ => "a bucket and a key",
            }));
        }
        let (bucket, account) = match (scheme, bucket.split_once('@')) {
            (Scheme::Azure, Some((container, account))) => (container, Some(account)),
            _ => (bucket, None),
        };
        match scheme {
            Scheme::S3 | Scheme::Google => is_bucket(bucket).map_err(bad)?,
            Scheme::Azure => {
                is_container(bucket).map_err(bad)?;
                let checked = account.map_or(Ok(()), is_account);
                checked.map_err(|_| bad("az://CONTAINER@ACCOUNT/KEY with an account's name"))?;
            }
            Scheme::Http | Scheme::Https => {}
        }
        let mut url = Url {
            scheme,
            bucket: bucket.into(),
            account: account.map(str::to_owned),
            key: key.into(),
            query: String::new(),
            options: Vec::new(),
            image: ImageOptions::default(),
        };
        if matches!(scheme, Scheme::Http | Scheme::Https) {
            url.query = query.into();
            if parse_url(&url.address()).is_none() {
                return Err(bad("a URL"));
            }
            return Ok(url);
        }
        let mut cache = CacheQuery::default();
        for (name, value) in url::form_urlencoded::parse(query.trim_start_matches('?').as_bytes()) {
            match &*name {
                _ if cache.take(&name, &value).map_err(|what| bad(&what))? => {}
                _ if url.is_store_option(&name) => url.options.push((name.into(), value.into())),
                _ => {
                    return Err(bad(&format!(
                        "an option of this kind of store, not '{name}'"
                    )));
                }
            }
        }
        url.image = cache.finish().map_err(bad)?;
        Ok(url)
    }
}

/// Omits the query and options, which may be secrets.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::S3 => "s3",
            Scheme::Google => "gs",
            Scheme::Azure => "az",
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        // The user information may contain a password.
        let bucket = self.bucket.rsplit('@').next().unwrap_or_default();
        let at = if self.account.is_some() { "@" } else { "" };
        let account = self.account.as_deref().unwrap_or_default();
        write!(f, "{scheme}://{bucket}{at}{account}/{}", self.key)
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({self})")
    }
}

impl Url {
    /// The supported URL schemes.
    pub const SCHEMES: &[&str] = &["s3", "gs", "az", "http", "https"];

    /// Returns the path, which ends in the object's name.
    pub fn path(&self) -> &[u8] {
        self.key.as_bytes()
    }

    /// Returns the options of the image.
    pub fn image(&self) -> &ImageOptions {
        &self.image
    }

    /// Returns the options of the image, to change them.
    pub fn image_mut(&mut self) -> &mut ImageOptions {
        &mut self.image
    }

    /// Returns the URL without the last component of the path, and that component.
    pub fn parent(&self) -> Option<(Url, &str)> {
        let (parent, name) = self.key.rsplit_once('/')?;
        let parent = parent.trim_end_matches('/');
        if parent.is_empty() {
            return None;
        }
        let mut url = self.clone();
        url.key = parent.into();
        Some((url, name))
    }

    /// Returns whether the value of the option `name` of this URL is a path of this host.
    pub fn is_path_option(&self, name: &str) -> bool {
        let option = self.scheme.option(name);
        let is_path = option.is_some_and(|option| PATHS.contains(&&*option));
        is_path || self.scheme.is_cloud() && name == CacheQuery::DIR
    }

    pub(crate) fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the bucket or container.
    pub(crate) fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Returns the account of Azure, if the URL names it.
    pub(crate) fn account(&self) -> Option<&str> {
        self.account.as_deref()
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Returns the options of the store.
    pub(crate) fn options(&self) -> &[(String, String)] {
        &self.options
    }

    /// Returns a hash of the query.
    pub(crate) fn query_hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.query.hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the URL of an HTTP object.
    pub(crate) fn address(&self) -> String {
        let scheme = match self.scheme {
            Scheme::Https => "https",
            _ => "http",
        };
        format!("{scheme}://{}/{}{}", self.bucket, self.key, self.query)
    }

    /// Returns whether the store has an option. The bucket is none: the URL names it once.
    fn is_store_option(&self, option: &str) -> bool {
        let option = self.scheme.option(option);
        option.is_some_and(|option| !BUCKETS.contains(&option.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_url_of_an_object_says_what_was_expected() {
        for text in [
            "s3://",
            "s3://bucket",
            "s3://bucket/",
            "s3:///key",
            "gs://b/k?endpoint=x",
            "s3://b/k?colour=red&secret_access_key=hush",
            "s3://b/k?cache_dir_size=1G",
            "s3://b/k?cache_dir=/x&cache_dir_size=much",
            "http://host",
            "https://ho st/x",
            "https://hÄ/x",
            "https://h%C3%A4V/x",
            "ftp://h/x",
        ] {
            let bad = text.parse::<Url>().expect_err(text).to_string();
            assert!(bad.contains("expected") && !bad.contains("hush"), "{bad}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for text in [
            "s3://bucket/a/key?region=x&secret_access_key=hush",
            "https://user:hush@host/path?X-Amz-Signature=hush",
        ] {
            let url: Url = text.parse().expect(text);
            let shown = format!("{url} {url:?}");
            assert!(!shown.contains("hush") && shown.contains("://"), "{shown}");
        }
    }

    #[test]
    fn a_path_is_shortened_until_only_a_name_is_left() {
        let url: Url = "s3://b/dir/image.erofs/etc//passwd/?region=x"
            .parse()
            .expect("a URL");
        let mut names = Vec::new();
        let mut shorter = url.clone();
        while let Some((parent, name)) = shorter.parent() {
            names.push(name.to_owned());
            shorter = parent;
        }
        assert_eq!(names, ["passwd", "etc", "image.erofs"]);
        assert_eq!(shorter.to_string(), "s3://b/dir");
        assert_eq!(shorter.options, url.options);
    }

    #[test]
    fn where_it_is_kept_is_an_option_too() {
        let mut url: Url = "s3://b/k?cache_dir=%2Fvar%2Fx&cache_dir_size=2G"
            .parse()
            .expect("a URL");
        use image::DiskCacheOptions;
        let tier = DiskCacheOptions::new("/var/x".into(), Some(2 << 30));
        assert_eq!(url.image().disk_cache(), Some(&tier));
        url.image_mut()
            .set_disk_cache(&DiskCacheOptions::new("/else".into(), None));
        assert_eq!(url.image().disk_cache(), Some(&tier));
    }
}
