//! What a guest needs to mount over TLS: tlshd, which shakes hands for the kernel, and certificates.
//!
//! A suite of Debian that has it is newer than the guest's root may be, so it comes with the libraries it needs, and is run by its own loader. All of it is made once,
//! below the cache: in `TLSHD/` the unpacked packages, `tlshd.conf`, and PEM files of an authority, a server at `server::HOST` and a client.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::command_output;
use crate::kernel::{self, Apt};
use crate::server::HOST;

/// The oldest suite that has tlshd.
const SUITE: &str = "trixie";

/// It, and what it needs; how a package of it is called changes from suite to suite.
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

/// Where it is, made if need be.
pub fn get(cache: &Path, mirror: Option<&str>) -> Result<PathBuf> {
    let _lock = kernel::lock(cache)?;
    let dir = place(cache);
    if dir.exists() {
        return Ok(dir);
    }
    let tree = Apt::new(cache, SUITE, mirror)?.unpack(PACKAGES)?;
    certify(&tree)?;
    fs::write(tree.join("tlshd.conf"), configuration(&dir))?;
    fs::rename(tree, &dir)?;
    Ok(dir)
}

/// Where it would be.
pub(crate) fn place(cache: &Path) -> PathBuf {
    cache.join("tlshd")
}

fn configuration(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "[debug]\nloglevel=1\n[authenticate.client]\nx509.truststore={dir}/ca.pem\nx509.certificate={dir}/client.pem\nx509.private_key={dir}/client.key\n"
    )
}

/// Certificates for as long as a cache is kept.
fn certify(dir: &Path) -> Result<()> {
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
