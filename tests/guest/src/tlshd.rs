//! Setup of mounts over TLS: tlshd, the kernel's TLS handshake daemon, and certificates.
//!
//! The Debian suite with tlshd may be newer than the guest's root, so it comes with its libraries
//! and runs with their loader. Everything is made once, in `TLSHD/` of the cache: the unpacked
//! packages, `tlshd.conf`, and PEM files of a certificate authority, a server at `server::HOST` and
//! a client.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::command_output;
use crate::kernel::{self, Apt};
use crate::server::HOST;

/// The oldest suite with tlshd.
const SUITE: &str = "trixie";

/// tlshd and its dependencies, whose package names depend on the suite.
const PACKAGES: &[&str] = &[
    "ktls-utils",
    "libatomic1",
    "libc6",
    "libffi8",
    "libgcc-s1",
    "libglib2.0-0t64",
    "libgmp10",
    "libgnutls30t64",
    "libhogweed6t64",
    "libidn2-0",
    "libkeyutils1",
    "libnettle8t64",
    "libnl-3-200",
    "libnl-genl-3-200",
    "libp11-kit0",
    "libpcre2-8-0",
    "libtasn1-6",
    "libunistring5",
    "zlib1g",
];

/// Returns the directory, which is made if missing.
pub fn get(cache: &Path, mirror: Option<&str>) -> Result<PathBuf> {
    let _lock = kernel::lock(cache)?;
    let dir = directory(cache);
    if dir.exists() {
        return Ok(dir);
    }
    let tree = Apt::new(cache, SUITE, mirror)?.unpack(PACKAGES)?;
    create_certificates(&tree)?;
    fs::write(tree.join("tlshd.conf"), configuration(&dir))?;
    fs::rename(tree, &dir)?;
    Ok(dir)
}

/// Returns the directory without making it.
pub(crate) fn directory(cache: &Path) -> PathBuf {
    cache.join("tlshd")
}

fn configuration(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "[debug]\nloglevel=1\n[authenticate.client]\nx509.truststore={dir}/ca.pem\nx509.certificate={dir}/client.pem\nx509.private_key={dir}/client.key\n"
    )
}

/// Makes certificates that are valid for the cache's lifetime.
fn create_certificates(dir: &Path) -> Result<()> {
    let openssl = |text: &str| {
        let mut command = Command::new("openssl");
        command_output(command.args(text.split(' ')).current_dir(dir)).map(drop)
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!(
        "req -x509 {key} -days 3650 -subj /CN=authority -keyout ca.key -out ca.pem"
    ))?;
    for (name, subject) in [
        ("server", format!("IP:{HOST}")),
        ("client", "email:guest@example.org".into()),
    ] {
        openssl(&format!(
            "req {key} -subj /CN={name} -addext subjectAltName={subject} -keyout {name}.key -out {name}.csr"
        ))?;
        openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -copy_extensions copy -days 3650 -out {name}.pem"
        ))?;
        fs::set_permissions(
            dir.join(format!("{name}.key")),
            fs::Permissions::from_mode(0o600),
        )?;
    }
    Ok(())
}
