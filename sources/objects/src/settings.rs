//! The settings of a store: what an object's URL and the environment say, checked by the rules of
//! the store before the client library sees them.
//!
//! The library trusts its settings: it puts a region or an account into the name of a host, panics
//! on an endpoint without a scheme, and asks the metadata service of the cloud if a set of
//! credentials is incomplete.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
use object_store::azure::{
    AzureConfigKey, AzureCredential, MicrosoftAzureBuilder, authority_hosts,
};
use object_store::client::HttpConnector;
use object_store::gcp::{
    GcpCredential, GcpSigningCredential, GoogleCloudStorageBuilder, GoogleConfigKey,
};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig, StaticCredentialProvider};
use url::Url as Address;

use crate::bounded_file::read_bounded;
use crate::credentials::{check_credentials, check_google_key, is_of_person};
use crate::environment::Environment;
use crate::request::Tuning;
use crate::rules::{
    Rule, is_account, is_credential, is_endpoint, is_identifier, is_line, is_region,
};
use crate::url::{Scheme, Url};

/// The error for settings that are not used: one line, without values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSetting(pub(crate) String);

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadSetting {}

/// An option of a store.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The name of the variable, or of the option in the URL.
    pub(crate) name: String,
    pub(crate) value: String,
}

/// The options of a store by the library's names.
#[derive(Clone, Default)]
pub(crate) struct Options(BTreeMap<String, Setting>);

impl Options {
    /// Returns the value of an option.
    pub(crate) fn get(&self, option: &str) -> Option<&str> {
        self.0.get(option).map(|setting| setting.value.as_str())
    }

    /// Returns the name under which an option was set.
    pub(crate) fn name(&self, option: &str) -> Option<&str> {
        self.0.get(option).map(|setting| setting.name.as_str())
    }

    /// Returns whether an option is on.
    fn is_on(&self, option: &str) -> bool {
        let value = self.get(option).map(str::to_ascii_lowercase);
        value.is_some_and(|value| matches!(&*value, "1" | "true" | "on" | "yes" | "y"))
    }
}

/// The checked settings for one object.
pub(crate) struct Settings {
    url: Url,
    options: Options,
    /// The URL that requests to the store begin with.
    address: Address,
    tenant: Option<String>,
}

/// The options that say what object of which store is read, beside those in [`Settings::new`]: the
/// URL alone says it.
pub(crate) const BUCKETS: &[&str] = &["aws_bucket", "google_bucket", "azure_container_name"];

/// The options that a tenant's variables may set.
const TENANT_OPTIONS: &[&str] = &[
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_region",
    "aws_default_region",
    "aws_skip_signature",
    "azure_storage_account_key",
    "azure_storage_account_name",
    "azure_storage_client_id",
    "azure_storage_client_secret",
    "azure_storage_sas_key",
    "azure_storage_tenant_id",
    "azure_storage_token",
    "azure_skip_signature",
    "google_service_account_key",
    "google_skip_signature",
];

/// The rules of options that become parts of addresses or of requests. Other options are lines.
const RULES: &[(&str, Rule)] = &[
    ("aws_access_key_id", is_credential),
    ("aws_secret_access_key", is_credential),
    ("aws_session_token", is_credential),
    ("aws_region", is_region),
    ("aws_default_region", is_region),
    ("aws_endpoint", is_endpoint),
    ("aws_endpoint_url_s3", is_endpoint),
    ("aws_endpoint_url_sts", is_endpoint),
    ("aws_metadata_endpoint", is_endpoint),
    ("aws_container_credentials_full_uri", is_endpoint),
    ("aws_container_credentials_relative_uri", is_path),
    ("azure_storage_account_key", is_credential),
    ("azure_storage_account_name", is_account),
    ("azure_storage_authority_host", is_endpoint),
    ("azure_storage_client_id", is_identifier),
    ("azure_storage_client_secret", is_credential),
    ("azure_storage_endpoint", is_endpoint),
    ("azure_storage_sas_key", is_credential),
    ("azure_storage_tenant_id", is_identifier),
    ("azure_storage_token", is_credential),
    ("azure_msi_endpoint", is_endpoint),
    ("azure_fabric_token_service_url", is_endpoint),
    ("google_base_url", is_endpoint),
    ("google_bearer_token", is_credential),
    ("google_service_account_key", is_any),
    ("proxy_ca_certificate", is_any),
];

fn is_path(text: &str) -> Result<(), &'static str> {
    match text.strip_prefix('/') {
        Some(rest) if !rest.starts_with('/') => is_credential(text),
        _ => Err("expected an absolute path"),
    }
}

/// Accepts any text: it is checked elsewhere.
fn is_any(_text: &str) -> Result<(), &'static str> {
    Ok(())
}

impl Settings {
    /// Returns the settings for the object that `url` names.
    pub(crate) fn new(url: &Url, environment: &Environment) -> Result<Settings, BadSetting> {
        let tenant = environment.tenant();
        let mut options = Options::default();
        if url.scheme().is_cloud() {
            options = Settings::options(url, environment)?;
            for (option, Setting { name, .. }) in &options.0 {
                if tenant.is_some() && !TENANT_OPTIONS.contains(&option.as_str()) {
                    return Err(BadSetting(format!(
                        "{name}: not for the source of a tenant"
                    )));
                }
            }
            check_google_keys(&options)?;
            check_credentials(url.scheme(), &options, tenant.is_some())?;
        }
        let address = Settings::address_of(url, &options)?;
        Ok(Settings {
            url: url.clone(),
            options,
            address,
            tenant,
        })
    }

    /// Returns the options in the environment and in the URL, of which the latter count if both
    /// have one.
    fn options(url: &Url, environment: &Environment) -> Result<Options, BadSetting> {
        let scheme = url.scheme();
        let mut options = BTreeMap::new();
        for (name, value) in environment.variables() {
            let Some(option) = scheme.variable(name) else {
                continue;
            };
            let value = value.to_str();
            let value = value.ok_or_else(|| BadSetting(format!("{name}: expected UTF-8")))?;
            // Programs that clear a variable often leave it empty.
            if option == "aws_session_token" && value.is_empty() {
                continue;
            }
            check(&option, name, value)?;
            let (name, value) = (name.to_owned(), value.to_owned());
            options.insert(option, Setting { name, value });
        }
        options.retain(|option, _| !BUCKETS.contains(&option.as_str()));
        for (name, value) in url.options() {
            let option = scheme.option(name).unwrap_or_else(|| name.clone());
            check(&option, name, value)?;
            if option == "aws_endpoint" {
                options.remove("aws_endpoint_url_s3");
            }
            let (name, value) = (name.clone(), value.clone());
            options.insert(option, Setting { name, value });
        }
        if let Some(account) = url.account() {
            let (name, value) = ("account in the URL".to_owned(), account.to_owned());
            let option = "azure_storage_account_name".to_owned();
            options.insert(option, Setting { name, value });
        }
        Ok(Options(options))
    }

    /// Returns the URL that requests begin with.
    fn address_of(url: &Url, options: &Options) -> Result<Address, BadSetting> {
        let bucket = url.bucket();
        let text = match url.scheme() {
            Scheme::S3 => {
                let region = options
                    .get("aws_region")
                    .or(options.get("aws_default_region"));
                let region = region.unwrap_or("us-east-1");
                let virtual_hosted = options.is_on("aws_virtual_hosted_style_request");
                let endpoint = options.get("aws_endpoint_url_s3");
                match endpoint.or(options.get("aws_endpoint")) {
                    Some(endpoint) if virtual_hosted => endpoint.to_owned(),
                    Some(endpoint) => format!("{}/{bucket}", endpoint.trim_end_matches('/')),
                    None if virtual_hosted => {
                        format!("https://{bucket}.s3.{region}.amazonaws.com")
                    }
                    None => format!("https://s3.{region}.amazonaws.com/{bucket}"),
                }
            }
            Scheme::Google => {
                let base = options.get("google_base_url");
                let base = base.unwrap_or("https://storage.googleapis.com");
                format!("{}/{bucket}", base.trim_end_matches('/'))
            }
            Scheme::Azure => {
                let account = options.get("azure_storage_account_name");
                let base = match options.get("azure_storage_endpoint") {
                    _ if options.is_on("azure_storage_use_emulator") => emulator()?,
                    Some(endpoint) => endpoint.to_owned(),
                    None => {
                        let account = account.ok_or_else(|| {
                            BadSetting(format!(
                                "expected an account: az://{bucket}@ACCOUNT/…, or the variable \
                                 AZURE_STORAGE_ACCOUNT_NAME"
                            ))
                        })?;
                        let host = if options.is_on("azure_use_fabric_endpoint") {
                            "blob.fabric.microsoft.com"
                        } else {
                            "blob.core.windows.net"
                        };
                        format!("https://{account}.{host}")
                    }
                };
                format!("{}/{bucket}", base.trim_end_matches('/'))
            }
            Scheme::Http | Scheme::Https => url.address(),
        };
        let address = Address::parse(&text).ok().filter(Address::has_host);
        address.ok_or_else(|| BadSetting("the settings of the store yield no address".into()))
    }

    /// Returns the URL that requests to the store begin with.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Returns whether somebody else than the user of this program has chosen the settings.
    pub(crate) fn is_tenant(&self) -> bool {
        self.tenant.is_some()
    }

    /// Returns the other server that a tenant's credentials take requests to, if there is one.
    pub(crate) fn authority(&self) -> Option<Address> {
        self.options.get("azure_storage_client_secret")?;
        Address::parse(authority_hosts::AZURE_PUBLIC_CLOUD).ok()
    }

    /// Returns the object's name in the disk cache: what a request is really sent to, and for a
    /// tenant also whose it is, unless a signature fixes the contents.
    pub(crate) fn cache_name(&self) -> String {
        let mut address = self.address.clone();
        // Neither secrets nor signatures, which differ each time, are a part of the place.
        address.set_query(None);
        let _ = address.set_username("");
        let _ = address.set_password(None);
        let mut name = format!("{} at {address}", self.url);
        for option in [
            "aws_region",
            "aws_default_region",
            "aws_s3_express",
            "azure_storage_account_name",
            "allow_invalid_certificates",
            "proxy_url",
        ] {
            if let Some(value) = self.options.get(option) {
                name.push_str(&format!(" {option}={}", value.escape_default()));
            }
        }
        match &self.tenant {
            Some(tenant) if self.url.image().keys().is_empty() => {
                format!("{name} tenant {}", tenant.escape_default())
            }
            _ => name,
        }
    }

    /// Returns the object's store, with clients of `connector`, and the path of the object there.
    pub(crate) fn store<C: HttpConnector>(
        &self,
        tuning: &Tuning,
        connector: C,
    ) -> object_store::Result<(Arc<dyn ObjectStore>, Path)> {
        // Retries are handled in `request`, uniformly for all failures.
        let never = RetryConfig {
            max_retries: 0,
            ..RetryConfig::default()
        };
        // An explicit http:// is allowed.
        let (plain, timeout) = ("true", format!("{}ms", tuning.request_timeout.as_millis()));
        let client = [
            (ClientConfigKey::AllowHttp, plain),
            (ClientConfigKey::Timeout, timeout.as_str()),
        ];
        // The builders have equally named methods, but no common trait.
        macro_rules! cloud {
            ($builder:expr, $key:ident) => {{
                let mut builder = $builder;
                for (key, value) in client {
                    builder = builder.with_config($key::Client(key), value);
                }
                for (option, setting) in &self.options.0 {
                    builder = builder.with_config(option.parse::<$key>()?, &setting.value);
                }
                builder.with_http_connector(connector).with_retry(never)
            }};
        }
        let bucket = self.url.bucket();
        let path = Path::from_url_path(self.url.key())?;
        let store: Arc<dyn ObjectStore> = match self.url.scheme() {
            Scheme::S3 => {
                let builder = AmazonS3Builder::new().with_bucket_name(bucket);
                let builder = cloud!(builder, AmazonS3ConfigKey);
                Arc::new(self.limit_s3(builder).build()?)
            }
            Scheme::Google => {
                let builder = GoogleCloudStorageBuilder::new().with_bucket_name(bucket);
                let builder = cloud!(builder, GoogleConfigKey);
                Arc::new(self.limit_google(builder).build()?)
            }
            Scheme::Azure => {
                let builder = MicrosoftAzureBuilder::new().with_container_name(bucket);
                let builder = cloud!(builder, AzureConfigKey);
                Arc::new(self.limit_azure(builder).build()?)
            }
            Scheme::Http | Scheme::Https => {
                let mut builder = HttpBuilder::new().with_url(self.url.address());
                for (key, value) in client {
                    builder = builder.with_config(key, value);
                }
                let builder = builder.with_http_connector(connector);
                // The whole URL is used unchanged.
                return Ok((
                    Arc::new(builder.with_retry(never).build()?),
                    Path::default(),
                ));
            }
        };
        Ok((store, path))
    }

    /// Gives a tenant's store the credentials among the settings or none, so that no other provider
    /// of credentials exists in this process.
    fn limit_s3(&self, builder: AmazonS3Builder) -> AmazonS3Builder {
        if !self.is_tenant() {
            return builder;
        }
        let text = |option| self.options.get(option).unwrap_or_default().to_owned();
        let credential = AwsCredential {
            key_id: text("aws_access_key_id"),
            secret_key: text("aws_secret_access_key"),
            token: self.options.get("aws_session_token").map(str::to_owned),
        };
        let anonymous = credential.key_id.is_empty();
        let builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(credential)));
        if anonymous {
            return builder.with_skip_signature(true);
        }
        builder
    }

    /// Limits the credentials of Google Cloud Storage likewise.
    fn limit_google(&self, builder: GoogleCloudStorageBuilder) -> GoogleCloudStorageBuilder {
        if !self.is_tenant() || self.options.get("google_service_account_key").is_some() {
            return builder;
        }
        let bearer = String::new();
        let none = StaticCredentialProvider::new(GcpCredential { bearer });
        let signing = StaticCredentialProvider::new(GcpSigningCredential {
            email: String::new(),
            private_key: None,
        });
        builder
            .with_credentials(Arc::new(none))
            .with_signing_credentials(Arc::new(signing))
            .with_skip_signature(true)
    }

    /// Limits the credentials of Azure likewise.
    fn limit_azure(&self, builder: MicrosoftAzureBuilder) -> MicrosoftAzureBuilder {
        if !self.is_tenant() {
            return builder;
        }
        let kinds = [
            ("azure_storage_token", "bearer_token"),
            ("azure_storage_account_key", "access_key"),
            ("azure_storage_client_secret", "client_secret"),
            ("azure_storage_sas_key", "sas_token"),
        ];
        let kind = kinds
            .iter()
            .find(|(option, _)| self.options.get(option).is_some());
        match kind {
            Some((_, kind)) => builder.with_config(AzureConfigKey::CredentialType, *kind),
            None => {
                let none = AzureCredential::BearerToken(String::new());
                builder
                    .with_credentials(Arc::new(StaticCredentialProvider::new(none)))
                    .with_skip_signature(true)
            }
        }
    }
}

/// Checks the value of an option. The error names the variable or the option in the URL.
fn check(option: &str, name: &str, value: &str) -> Result<(), BadSetting> {
    let rule = RULES.iter().find(|(known, _)| *known == option);
    let rule = rule.map_or(is_line as Rule, |(_, rule)| *rule);
    rule(value).map_err(|expected| BadSetting(format!("{name}: {expected}")))
}

/// Checks the keys of Google's service accounts, in an option or in a file.
fn check_google_keys(options: &Options) -> Result<(), BadSetting> {
    if let Some(key) = options.get("google_service_account_key") {
        check_google_key(key)?;
    }
    for option in ["google_service_account", "google_application_credentials"] {
        let (Some(name), Some(path)) = (options.name(option), options.get(option)) else {
            continue;
        };
        let key = read_bounded(path.as_ref(), MAX_KEY_FILE);
        let key = key.map_err(|error| BadSetting(format!("{name}: {error}")))?;
        let key = String::from_utf8_lossy(&key);
        // The credentials of a person are of another form, which has no addresses.
        if !is_of_person(&key) {
            check_google_key(&key)?;
        }
    }
    Ok(())
}

/// Maximum size in bytes of a file with a key.
const MAX_KEY_FILE: u64 = 1 << 20;

/// Returns the address of Azure's emulator, as the library does.
fn emulator() -> Result<String, BadSetting> {
    const VARIABLE: &str = "AZURITE_BLOB_STORAGE_URL";
    match std::env::var(VARIABLE) {
        Ok(value) => {
            check("azure_storage_endpoint", VARIABLE, &value)?;
            Ok(value)
        }
        Err(_) => Ok("http://127.0.0.1:10000".into()),
    }
}
