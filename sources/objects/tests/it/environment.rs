//! Variables of the environment: where they lead, and what of them is no setting at all. The first
//! request is prepared and not sent, unless a test has servers.

use std::ffi::OsString;
use std::sync::Arc;

use image::{DiskCacheOptions, Piece, RangeSource};
use objects::{Environment, Object, Url, rehearse};

use crate::faults::{object_of, tuning};
use crate::server::Server;

const KEY: &str = r#"{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA==\n-----END PRIVATE KEY-----\n", "private_key_id": "id", "client_email": "me@project.example"}"#;

fn environment(variables: &[(&str, &str)]) -> Environment {
    let own = |(name, value): &(&str, &str)| (OsString::from(name), OsString::from(value));
    Environment::new(variables.iter().map(own))
}

fn addresses(url: &str, variables: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let url: Url = url.parse().expect(url);
    rehearse(&url, &environment(variables)).map_err(|error| error.to_string())
}

fn of_tenant(url: &str, variables: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let tenant = (Environment::TENANT, "pod");
    addresses(url, &[variables, &[tenant]].concat())
}

/// The stores, and the one address that requests of a tenant may have.
const STORES: [(&str, &str); 3] = [
    ("s3://bucket/key", "https://s3.us-east-1.amazonaws.com"),
    ("gs://bucket/key", "https://storage.googleapis.com"),
    (
        "az://container@account/key",
        "https://account.blob.core.windows.net",
    ),
];

/// All variables that say where requests go or whose credentials they have.
const VARIABLES: &[&str] = &[
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_BUCKET",
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "AWS_METADATA_ENDPOINT",
    "AWS_IMDSV1_FALLBACK",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_S3_EXPRESS",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_PROXY_URL",
    "AWS_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_STORAGE_TENANT_ID",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_STORAGE_USE_EMULATOR",
    "AZURE_CONTAINER_NAME",
    "AZURE_AUTHORITY_HOST",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_MSI_ENDPOINT",
    "AZURE_USE_FABRIC_ENDPOINT",
    "AZURE_FABRIC_TOKEN_SERVICE_URL",
    "AZURE_CREDENTIAL_TYPE",
    "AZURE_PROXY_URL",
    "IDENTITY_ENDPOINT",
    "GOOGLE_BASE_URL",
    "GOOGLE_BUCKET",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_PROXY_URL",
    "SERVICE_ACCOUNT",
];

#[test]
fn no_variable_of_a_tenant_leads_to_another_host() {
    let mut accepted = 0;
    for (url, store) in STORES {
        assert_eq!(of_tenant(url, &[]).as_deref(), Ok(&[store.to_owned()][..]));
        for name in VARIABLES {
            for value in [
                "x",
                "true",
                "managed_identity",
                "http://host.example",
                "//host.example/",
                "host.example:443/#",
                "@host.example/#",
                "x.host.example/",
                "169.254.169.254",
                "/etc/hostname",
                KEY,
            ] {
                // The region is a part of the name of the host.
                let region = ["AWS_REGION", "AWS_DEFAULT_REGION"].contains(name) && value == "x";
                for sent in of_tenant(url, &[(name, value)]).unwrap_or_default() {
                    accepted += 1;
                    let expected = sent == store
                        || region && sent == "https://s3.x.amazonaws.com"
                        || region && sent == "https://s3.true.amazonaws.com";
                    assert!(
                        expected || is_region(&sent, name),
                        "{url} {name}={value}: {sent}"
                    );
                }
            }
        }
    }
    assert!(accepted > 100, "{accepted}");
}

/// Returns whether an address is that of S3 in a region of one label.
fn is_region(address: &str, name: &str) -> bool {
    let label = address
        .strip_prefix("https://s3.")
        .and_then(|rest| rest.strip_suffix(".amazonaws.com"));
    name.ends_with("REGION") && label.is_some_and(|label| !label.contains(['.', '/']))
}

#[test]
fn complete_credentials_of_a_tenant_are_used_and_no_others() {
    let secret = [
        (
            "AZURE_STORAGE_CLIENT_ID",
            "6f0e9b5e-0000-4000-8000-000000000000",
        ),
        ("AZURE_STORAGE_CLIENT_SECRET", "hush"),
        ("AZURE_STORAGE_TENANT_ID", "contoso.example"),
    ];
    let azure = STORES[2].0;
    let login = of_tenant(azure, &secret).expect("prepared");
    assert_eq!(login, ["https://login.microsoftonline.com"]);
    for (variables, store) in [
        (
            &[
                ("AWS_ACCESS_KEY_ID", "id"),
                ("AWS_SECRET_ACCESS_KEY", "hush"),
            ][..],
            STORES[0],
        ),
        (&[("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")], STORES[2]),
        (&[("AZURE_STORAGE_SAS_KEY", "sig=hush")], STORES[2]),
        (&[("AZURE_STORAGE_TOKEN", "hush")], STORES[2]),
    ] {
        let sent = of_tenant(store.0, variables).expect("prepared");
        assert_eq!(sent, [store.1], "{variables:?}");
    }
}

#[test]
fn an_incomplete_set_of_credentials_is_refused() {
    for (url, variables) in [
        ("s3://b/k", &[("AWS_ACCESS_KEY_ID", "hush")][..]),
        ("s3://b/k", &[("AWS_SECRET_ACCESS_KEY", "hush")]),
        ("s3://b/k", &[("AWS_SESSION_TOKEN", "hush")]),
        ("s3://b/k", &[("AWS_ROLE_ARN", "arn:aws:iam::1:role/hush")]),
        ("s3://b/k", &[("AWS_WEB_IDENTITY_TOKEN_FILE", "/hush")]),
        (
            "s3://b/k",
            &[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://hush")],
        ),
        ("az://c@a/k", &[("AZURE_STORAGE_CLIENT_SECRET", "hush")]),
        (
            "az://c@a/k",
            &[
                ("AZURE_STORAGE_CLIENT_SECRET", "hush"),
                ("AZURE_STORAGE_CLIENT_ID", "id"),
            ],
        ),
        ("az://c@a/k", &[("AZURE_FEDERATED_TOKEN_FILE", "/hush")]),
    ] {
        let line = addresses(url, variables).expect_err(url);
        assert!(line.starts_with("incomplete credentials"), "{line}");
        assert!(!line.contains("hush"), "{line}");
    }
    // A part of a set of keys is none of a role's.
    for name in ["AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_TENANT_ID"] {
        let line = of_tenant("az://c@a/k", &[(name, "x")]).expect_err(name);
        assert!(line.starts_with("incomplete credentials"), "{line}");
    }
}

#[test]
fn a_key_with_an_address_or_an_unknown_field_is_refused() {
    for (field, value) in [
        ("gcs_base_url", "\"http://host.example\""),
        ("disable_oauth", "true"),
        ("colour", "\"red\""),
    ] {
        let key = KEY.replacen('{', &format!("{{\"{field}\": {value}, "), 1);
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("key.json");
        std::fs::write(&path, &key).expect("written");
        let path = path.display().to_string();
        for (name, value) in [
            ("GOOGLE_SERVICE_ACCOUNT_KEY", &key),
            ("GOOGLE_SERVICE_ACCOUNT", &path),
            ("GOOGLE_APPLICATION_CREDENTIALS", &path),
        ] {
            let line = addresses("gs://b/k", &[(name, value)]).expect_err(field);
            assert!(line.contains(field), "{name}: {line}");
        }
    }
}

#[test]
fn ordinary_mistakes_with_variables_are_one_line() {
    for (url, name, value) in [
        ("s3://b/k", "AWS_ENDPOINT_URL", ""),
        ("s3://b/k", "AWS_ENDPOINT_URL", "minio:9000"),
        ("s3://b/k", "AWS_ENDPOINT_URL", "minio"),
        ("s3://b/k", "AWS_ENDPOINT_URL", "http://"),
        ("s3://b/k", "AWS_ENDPOINT_URL", "http://minio:9000\n"),
        ("s3://b/k", "AWS_ENDPOINT_URL_S3", "localhost"),
        ("s3://b/k", "AWS_REGION", "eu central"),
        ("s3://b/k", "AWS_REGION", ""),
        ("s3://b/k", "AWS_REGION", "eu-1\n"),
        ("s3://b/k", "AWS_SECRET_ACCESS_KEY", "key\n"),
        ("s3://b/k", "AWS_SECRET_ACCESS_KEY", ""),
        ("s3://b/k", "AWS_SESSION_TOKEN", "token\n"),
        ("s3://b/k", "AWS_TIMEOUT", "soon"),
        ("s3://b/k", "AWS_USER_AGENT", "a\nb"),
        ("gs://b/k", "GOOGLE_BASE_URL", "localhost"),
        ("gs://b/k", "GOOGLE_SERVICE_ACCOUNT_KEY", "not JSON"),
        ("gs://b/k", "GOOGLE_SERVICE_ACCOUNT", "/no/such/file"),
        ("az://c/k", "AZURE_STORAGE_ENDPOINT", "localhost"),
        ("az://c/k", "AZURE_STORAGE_ACCOUNT_NAME", "two words"),
        ("az://c/k", "AZURE_STORAGE_ACCOUNT_KEY", "no base64\n"),
    ] {
        let url: Url = url.parse().expect(url);
        let variables = environment(&[
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "key"),
            ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
            (name, value),
        ]);
        let opened = Object::open_in(&url, tuning(), &variables);
        let line = opened.err().expect(name).to_string();
        assert!(!line.contains('\n') && !line.is_empty(), "{name}: {line}");
        assert!(!line.contains("library"), "a panic: {line}");
    }
    for url in [
        "s3://two words/k",
        "s3://b@c/k",
        "gs://b#c/k",
        "az://c@a.b/k",
        "s3://../k",
    ] {
        let bad = url.parse::<Url>().expect_err(url).to_string();
        assert!(bad.contains("expected") && !bad.contains('\n'), "{bad}");
    }
}

/// Opens an object through a disk cache, and returns its first bytes.
fn first_bytes(url: &str, cache: &DiskCacheOptions, variables: &[(&str, &str)]) -> Vec<u8> {
    let mut url: Url = url.parse().expect(url);
    url.image_mut().set_disk_cache(cache);
    let opened = Object::open_in(&url, tuning(), &environment(variables));
    let object: Arc<dyn RangeSource> = opened.expect("opened");
    let mut bytes = vec![0; 100];
    let piece = Piece {
        offset: 0,
        buffer: &mut bytes,
    };
    object.read(&mut [piece]).expect("read");
    bytes
}

/// Returns a server whose object has the ETag that the one of another server has as well.
fn server(path: &str, bytes: &[u8]) -> Server {
    let server = Server::new(bytes.to_vec());
    server.call(path);
    server.tell(Some("same"), false, true);
    server
}

#[test]
fn an_entry_of_the_disk_cache_is_for_the_server_that_filled_it() {
    let (evil, good) = (object_of(200_000), object_of(200_001).split_off(1));
    for (url, path, name) in [
        ("s3://bucket/key", "/bucket/key", "AWS_ENDPOINT_URL"),
        ("s3://bucket/key", "/bucket/key", "AWS_ENDPOINT_URL_S3"),
        ("gs://bucket/key", "/bucket/key", "GOOGLE_BASE_URL"),
        ("az://bucket/key", "/bucket/key", "AZURE_STORAGE_ENDPOINT"),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = DiskCacheOptions::new(dir.path().into(), None);
        for bytes in [&evil, &good] {
            let server = server(path, bytes);
            let base = server.base();
            let variables = [
                (name, base.as_str()),
                ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
                ("AWS_SKIP_SIGNATURE", "true"),
                ("GOOGLE_SKIP_SIGNATURE", "true"),
                ("AZURE_SKIP_SIGNATURE", "true"),
            ];
            assert_eq!(first_bytes(url, &cache, &variables), bytes[..100], "{name}");
        }
    }
}

#[test]
fn the_disk_cache_of_a_tenant_is_apart_unless_a_signature_fixes_the_contents() {
    let (evil, good) = (object_of(200_000), object_of(200_001).split_off(1));
    let dir = tempfile::tempdir().expect("a directory");
    let cache = DiskCacheOptions::new(dir.path().into(), None);
    let server = server("/image", &evil);
    let url = format!("{}/image", server.base());
    let first = first_bytes(&url, &cache, &[(Environment::TENANT, "one")]);
    assert_eq!(first, evil[..100]);
    server.replace(good.clone(), "same");
    // The same tenant has the entry; another one and the node's own do not.
    let of = |tenant| first_bytes(&url, &cache, &[(Environment::TENANT, tenant)]);
    assert_eq!(of("one"), evil[..100]);
    assert_eq!(of("two"), good[..100]);
    assert_eq!(first_bytes(&url, &cache, &[]), good[..100]);
}
