//! Kernel modules: their dependencies and loading order.
//!
//! The dependencies are read from the modules themselves (`depends=` in `.modinfo`, as depmod
//! does), since the package has no `modules.dep`. The cache's `modules.dep` has a line `NAME:
//! NEEDED…` for a module and `NAME builtin` for a built-in one. Not supported: soft dependencies
//! and aliases.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

/// The available modules and their dependencies.
pub(crate) struct Dependencies {
    /// `None` for a built-in module.
    dependencies: BTreeMap<String, Option<Vec<String>>>,
}

impl Dependencies {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut needs = BTreeMap::new();
        for line in text.lines() {
            if let Some(name) = line.strip_suffix(" builtin") {
                needs.insert(name.into(), None);
            } else {
                let (name, list) = line
                    .split_once(':')
                    .with_context(|| format!("modules.dep: expected `NAME: …`, got {line:?}"))?;
                needs.insert(
                    name.into(),
                    Some(list.split_whitespace().map(Into::into).collect()),
                );
            }
        }
        Ok(Self {
            dependencies: needs,
        })
    }

    /// Returns the loading order of the wanted modules: each after its dependencies, without
    /// duplicates and built-in ones.
    pub(crate) fn order(&self, wanted: &[&str]) -> Result<Vec<String>> {
        let mut order = Vec::new();
        for name in wanted {
            self.visit(&name.replace('-', "_"), &mut Vec::new(), &mut order)?;
        }
        Ok(order)
    }

    fn visit(&self, name: &str, above: &mut Vec<String>, order: &mut Vec<String>) -> Result<()> {
        if order.iter().any(|done| done == name) {
            return Ok(());
        }
        if above.iter().any(|module| module == name) {
            bail!("module {name} needs itself: {}", above.join(" → "));
        }
        let Some(needs) = self
            .dependencies
            .get(name)
            .with_context(|| format!("no module {name} in the cache"))?
        else {
            return Ok(());
        };
        above.push(name.into());
        for need in needs {
            self.visit(need, above, order)?;
        }
        above.pop();
        order.push(name.into());
        Ok(())
    }
}

/// Returns the name of a module from its file's path: no directories, no `.ko*`, underscores.
pub(crate) fn name_of(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

/// Returns the dependencies listed in a module's bytes.
pub(crate) fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module[at + KEY.len()..]
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default();
    String::from_utf8_lossy(value)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needed_modules_come_first_and_once() {
        let deps = Dependencies::parse("9p: 9pnet netfs\n9pnet: \n9pnet_fd: 9pnet\nnetfs: fscache\nfscache: \nvirtio_pci builtin\n").unwrap();
        assert_eq!(
            deps.order(&["virtio-pci", "9p", "9pnet-fd"]).unwrap(),
            ["9pnet", "fscache", "netfs", "9p", "9pnet_fd"]
        );
    }

    #[test]
    fn unknown_and_circular_modules_are_errors() {
        let deps = Dependencies::parse("a: b\nb: a\nc: d\n").unwrap();
        assert!(
            deps.order(&["a"])
                .unwrap_err()
                .to_string()
                .contains("needs itself")
        );
        assert!(
            deps.order(&["c"])
                .unwrap_err()
                .to_string()
                .contains("no module d")
        );
    }

    #[test]
    fn a_module_says_what_it_needs() {
        assert_eq!(
            depends(b"\x7fELF..\0license=GPL\0depends=9pnet,fs-cache\0name=9p\0"),
            ["9pnet", "fs_cache"]
        );
        assert!(depends(b"\0depends=\0").is_empty());
        assert_eq!(
            name_of("kernel/drivers/char/hw_random/virtio-rng.ko.xz"),
            "virtio_rng"
        );
    }
}
