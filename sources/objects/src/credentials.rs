//! Credentials of stores: complete sets, and the fields of a key.

use serde_json::Value;

use crate::settings::{BadSetting, Options};
use crate::url::Scheme;

/// The fields of a service account's key, as Google issues it.
const KEY_FIELDS: &[&str] = &[
    "type",
    "project_id",
    "private_key_id",
    "private_key",
    "client_email",
    "client_id",
    "auth_uri",
    "token_uri",
    "auth_provider_x509_cert_url",
    "client_x509_cert_url",
    "universe_domain",
];

/// The fields that the client library reads as well, and the variables that replace them: a key
/// does not say where requests go.
const KEY_OPTIONS: &[(&str, &str)] = &[
    ("gcs_base_url", "GOOGLE_BASE_URL"),
    ("disable_oauth", "GOOGLE_SKIP_SIGNATURE"),
];

/// Options of a store that are used together. With a part of a set the library would ask the
/// metadata service.
struct Set {
    store: Scheme,
    /// If one of these is there, all of the set have to be.
    any: &'static [&'static str],
    all: &'static [&'static str],
}

const KEYS: &[Set] = &[
    Set {
        store: Scheme::S3,
        any: &[
            "aws_access_key_id",
            "aws_secret_access_key",
            "aws_session_token",
        ],
        all: &["aws_access_key_id", "aws_secret_access_key"],
    },
    Set {
        store: Scheme::Azure,
        any: &["azure_storage_client_secret"],
        all: &[
            "azure_storage_client_id",
            "azure_storage_client_secret",
            "azure_storage_tenant_id",
        ],
    },
    Set {
        store: Scheme::Azure,
        any: &["azure_federated_token_file"],
        all: &[
            "azure_storage_client_id",
            "azure_federated_token_file",
            "azure_storage_tenant_id",
        ],
    },
];

/// Sets that count unless there is a key.
const ROLES: &[Set] = &[
    Set {
        store: Scheme::S3,
        any: &["aws_web_identity_token_file", "aws_role_arn"],
        all: &["aws_web_identity_token_file", "aws_role_arn"],
    },
    Set {
        store: Scheme::S3,
        any: &["aws_container_credentials_full_uri"],
        all: &[
            "aws_container_credentials_full_uri",
            "aws_container_authorization_token_file",
        ],
    },
];

/// A tenant has no role of the node that an identifier could select.
const TENANTS: &[Set] = &[Set {
    store: Scheme::Azure,
    any: &["azure_storage_client_id", "azure_storage_tenant_id"],
    all: &[
        "azure_storage_client_id",
        "azure_storage_client_secret",
        "azure_storage_tenant_id",
    ],
}];

/// Checks that sets of credentials are complete.
pub(crate) fn check_credentials(
    scheme: Scheme,
    options: &Options,
    is_tenant: bool,
) -> Result<(), BadSetting> {
    let has_key = options.get("aws_access_key_id").is_some();
    let roles: &[Set] = if has_key { &[] } else { ROLES };
    let tenants: &[Set] = if is_tenant { TENANTS } else { &[] };
    let sets = KEYS.iter().chain(roles).chain(tenants);
    for set in sets.filter(|set| set.store == scheme) {
        let Some(name) = set.any.iter().find_map(|option| options.name(option)) else {
            continue;
        };
        if let Some(missing) = set.all.iter().find(|option| options.get(option).is_none()) {
            return Err(BadSetting(format!(
                "incomplete credentials: {name} without {}",
                missing.to_ascii_uppercase()
            )));
        }
    }
    Ok(())
}

/// Checks the fields of a service account's key. The error has no value.
pub(crate) fn check_google_key(text: &str) -> Result<(), BadSetting> {
    let bad = |what: String| BadSetting(format!("key of the service account: {what}"));
    let key: Value = serde_json::from_str(text)
        .map_err(|error| bad(format!("invalid JSON at line {}", error.line())))?;
    let Value::Object(fields) = key else {
        return Err(bad("expected a JSON object".into()));
    };
    for field in fields.keys() {
        if let Some((_, variable)) = KEY_OPTIONS.iter().find(|(name, _)| name == field) {
            return Err(bad(format!(
                "the field {field} is not allowed: use the variable {variable}"
            )));
        }
        if !KEY_FIELDS.contains(&field.as_str()) {
            let field: String = field.chars().take(64).collect();
            return Err(bad(format!("unknown field '{}'", field.escape_debug())));
        }
    }
    let is_text = |field: &&str| fields.get(*field).is_some_and(Value::is_string);
    let needed = ["private_key", "private_key_id", "client_email"];
    match needed.iter().find(|field| !is_text(field)) {
        Some(field) => Err(bad(format!("expected the field {field}"))),
        None => Ok(()),
    }
}

/// Returns whether the text is that of the credentials of a person, as `gcloud` writes them.
pub(crate) fn is_of_person(text: &str) -> bool {
    let key = serde_json::from_str::<Value>(text);
    key.is_ok_and(|key| key["type"] == "authorized_user")
}
