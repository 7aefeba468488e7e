//! Configurations of images (image-spec, `config.md`): the platform, and what a container runs.

use serde_json::{Map, Value, json};

use super::{Digest, MAX_DOCUMENT, Platform};
use crate::error::{Error, Result};

/// The configuration of an image. All of it that does not concern layers is kept as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Config(Map<String, Value>);

impl Config {
    /// Returns the configuration of an image for `platform` that runs nothing.
    pub fn new(platform: &Platform) -> Config {
        let mut fields = Map::new();
        fields.insert("architecture".into(), platform.architecture.clone().into());
        fields.insert("os".into(), platform.os.clone().into());
        fields.insert("config".into(), json!({}));
        Config(fields)
    }

    /// Parses the configuration of another image.
    pub fn parse(text: &[u8]) -> Result<Config> {
        if text.len() as u64 > MAX_DOCUMENT {
            let line = format!("expected at most {MAX_DOCUMENT} bytes of JSON, got more");
            return Err(Error::new(line));
        }
        let fields: Map<String, Value> = serde_json::from_slice(text).map_err(Error::new)?;
        let config = Config(fields);
        if config.platform().is_none() {
            let line = "expected the configuration of an image, got no architecture and os";
            return Err(Error::new(line));
        }
        Ok(config)
    }

    /// Returns the platform, if it is given.
    pub(super) fn platform(&self) -> Option<Platform> {
        let text = |name: &str| Some(self.0.get(name)?.as_str()?.to_owned());
        Some(Platform {
            os: text("os")?,
            architecture: text("architecture")?,
        })
    }

    /// Returns the document for one layer with this digest, which is not compressed.
    pub(super) fn with_layer(mut self, layer: &Digest, created: Option<String>) -> Value {
        // The history describes other layers.
        self.0.remove("history");
        let rootfs = json!({"type": "layers", "diff_ids": [layer.to_string()]});
        self.0.insert("rootfs".into(), rootfs);
        if let Some(created) = created {
            self.0.insert("created".into(), created.into());
        }
        Value::Object(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_that_of_the_other_image_except_for_layers() {
        let text = br#"{
            "architecture": "arm64", "os": "linux", "variant": "v8", "created": "then",
            "config": {"Entrypoint": ["/bin/sh"], "Env": ["A=B"]},
            "history": [{}, {}], "rootfs": {"type": "layers", "diff_ids": ["x", "y"]}
        }"#;
        let layer = Digest::sha256(b"layer");
        let config = Config::parse(text).expect("a configuration");
        assert_eq!(config.platform().expect("given").to_string(), "linux/arm64");
        let written = config.with_layer(&layer, None);
        assert_eq!(written["config"]["Entrypoint"], json!(["/bin/sh"]));
        assert_eq!(
            (&written["variant"], &written["created"]),
            (&json!("v8"), &json!("then"))
        );
        assert_eq!(written["history"], Value::Null);
        assert_eq!(written["rootfs"]["diff_ids"], json!([layer.to_string()]));
        for text in [&b"{}"[..], b"[]", b"{", br#"{"os": "linux"}"#] {
            assert!(Config::parse(text).is_err());
        }
    }
}
