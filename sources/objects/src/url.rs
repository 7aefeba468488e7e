//! URLs of objects.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};

use crate::connector::{Connector, TransferCounters};
use crate::image_options::{CacheQuery, ImageOptions};
use crate::request::Tuning;

/// An object in a store: `s3://BUCKET/KEY`, `gs://BUCKET/KEY` or `az://CONTAINER/KEY`, each
/// optionally followed by `?OPTION=VALUE&…`; or `http://…` or `https://…`, where the query is sent
/// to the server.
///
/// Options are named like the environment variables in lower case, with or without their common
/// prefix: `endpoint` or `aws_endpoint` is `AWS_ENDPOINT_URL`. They take precedence over the
/// environment. `cache_dir` and `cache_dir_size` configure the disk cache.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    scheme: Scheme,
    /// For HTTP, the host and everything else before the path.
    bucket: String,
    key: String,
    /// For HTTP, including the question mark.
    query: String,
    options: Vec<(String, String)>,
    image: ImageOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    S3,
    Google,
    Azure,
    Http,
    Https,
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
        let mut url = Url {
            scheme,
            bucket: bucket.into(),
            key: key.into(),
            query: String::new(),
            options: Vec::new(),
            image: ImageOptions::default(),
        };
        if matches!(scheme, Scheme::Http | Scheme::Https) {
            url.query = query.into();
            if url::Url::parse(&url.address()).is_err() {
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
        write!(f, "{scheme}://{bucket}/{}", self.key)
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

    /// Returns the object's name in the disk cache.
    pub(crate) fn cache_name(&self) -> String {
        let endpoint = self
            .options
            .iter()
            .filter(|(name, _)| name.contains("endpoint"));
        let endpoint: Vec<_> = endpoint.map(|(_, value)| value.as_str()).collect();
        format!("{self} {}", endpoint.join(" "))
    }

    /// Returns a hash of the query.
    pub(crate) fn query_hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.query.hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the URL of an HTTP object.
    fn address(&self) -> String {
        let scheme = match self.scheme {
            Scheme::Https => "https",
            _ => "http",
        };
        format!("{scheme}://{}/{}{}", self.bucket, self.key, self.query)
    }

    fn is_store_option(&self, option: &str) -> bool {
        match self.scheme {
            Scheme::S3 => option.parse::<AmazonS3ConfigKey>().is_ok(),
            Scheme::Google => option.parse::<GoogleConfigKey>().is_ok(),
            Scheme::Azure => option.parse::<AzureConfigKey>().is_ok(),
            Scheme::Http | Scheme::Https => false,
        }
    }

    /// Returns the object's store and its path there.
    pub(crate) fn store(
        &self,
        tuning: &Tuning,
        counts: &Arc<TransferCounters>,
    ) -> object_store::Result<(Arc<dyn ObjectStore>, Path)> {
        // Retries are handled in `request`, uniformly for all failures.
        let never = RetryConfig {
            max_retries: 0,
            ..RetryConfig::default()
        };
        // The builders have equally named methods, but no common trait.
        macro_rules! built {
            ($builder:expr) => {{
                let connector = Connector(counts.clone());
                let builder = $builder.with_http_connector(connector);
                Arc::new(builder.with_retry(never).build()?)
            }};
        }
        // An explicit http:// is allowed.
        let (plain, timeout) = ("true", format!("{}ms", tuning.request_timeout.as_millis()));
        let client = [
            (ClientConfigKey::AllowHttp, plain),
            (ClientConfigKey::Timeout, timeout.as_str()),
        ];
        macro_rules! cloud {
            ($builder:expr, $key:ident) => {{
                let mut builder = $builder;
                for (key, value) in client {
                    builder = builder.with_config($key::Client(key), value);
                }
                for (key, value) in &self.options {
                    builder = builder.with_config(key.parse::<$key>()?, value);
                }
                built!(builder)
            }};
        }
        let bucket = &self.bucket;
        let mut path = Path::from_url_path(&self.key)?;
        let store: Arc<dyn ObjectStore> = match self.scheme {
            Scheme::S3 => cloud!(
                AmazonS3Builder::from_env().with_bucket_name(bucket),
                AmazonS3ConfigKey
            ),
            Scheme::Google => cloud!(
                GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket),
                GoogleConfigKey
            ),
            Scheme::Azure => cloud!(
                MicrosoftAzureBuilder::from_env().with_container_name(bucket),
                AzureConfigKey
            ),
            Scheme::Http | Scheme::Https => {
                // The whole URL is used unchanged.
                path = Path::default();
                let mut builder = HttpBuilder::new().with_url(self.address());
                for (key, value) in client {
                    builder = builder.with_config(key, value);
                }
                built!(builder)
            }
        };
        Ok((store, path))
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
