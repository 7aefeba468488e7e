//! The secret that the keys of exports derive from: `handle-key` in the state directory.
//!
//! A holder of the secret can forge file handles of everything that is exported. So it is random,
//! readable by this program's user alone, and not derived from anything else.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use command::state_dir;
use rustix::fs::{CWD, OFlags, RenameFlags};
use vfs::HandleKey;

use super::recovery::{self, ServerIdentity};
use crate::Failure;

/// The name of the secret's file.
const FILE_NAME: &str = "handle-key";

/// Length of the secret in bytes.
pub(super) const LEN: usize = 32;

/// The reasons why the secret cannot be used.
enum KeyError {
    /// Other users may know the secret; the message has what was expected and found.
    Unsafe(String),
    Failed(io::Error),
}

impl From<io::Error> for KeyError {
    fn from(error: io::Error) -> KeyError {
        KeyError::Failed(error)
    }
}

/// Returns the secret of the server in its state directory, and creates it if there is none.
/// Returns `temporary` if there is no such directory, or if the port is chosen anew at each start.
/// Fails if other users may know the secret, or if it cannot be stored in a directory that
/// was named.
pub(super) fn server_key(
    ServerIdentity { dir, addr }: &ServerIdentity,
    temporary: &HandleKey,
) -> Result<HandleKey, Failure> {
    let usual = || {
        (!recovery::is_ephemeral_port(addr))
            .then(recovery::default_state_dir)
            .flatten()
    };
    let Some(path) = dir.clone().or_else(usual) else {
        return Ok(temporary.clone());
    };
    match load(&path) {
        Ok(key) => Ok(key),
        Err(KeyError::Unsafe(why)) => Err(Failure::new(why)),
        Err(KeyError::Failed(error)) if dir.is_some() => Err(Failure::new(format!(
            "{}: {error}",
            path.join(FILE_NAME).display()
        ))),
        Err(KeyError::Failed(error)) => {
            tracing::warn!(
                "NFS file handles become stale at a restart: {}: {error} (--nfs-state-dir sets another directory)",
                path.join(FILE_NAME).display()
            );
            Ok(temporary.clone())
        }
    }
}

/// Returns a new secret that is not stored.
pub(super) fn temporary() -> Result<[u8; LEN], Failure> {
    sys::random::bytes().map_err(|error| Failure::new(format!("getrandom: {error}")))
}

/// Returns the secret in the directory `dir`, and creates it if there is none.
fn load(dir: &Path) -> Result<HandleKey, KeyError> {
    recovery::create_private_dir(dir)?;
    state_dir::check_or_sticky(dir, &fs::metadata(dir)?).map_err(KeyError::Unsafe)?;
    let path = dir.join(FILE_NAME);
    match open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => create(dir)?,
        opened => return read(&path, opened?),
    }
    read(&path, open(&path)?)
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

fn read(path: &Path, mut file: File) -> Result<HandleKey, KeyError> {
    let (meta, own) = (file.metadata()?, rustix::process::geteuid().as_raw());
    if !meta.is_file() || meta.uid() != own || meta.mode() & 0o077 != 0 {
        return Err(KeyError::Unsafe(format!(
            "{}: expected a file of user {own} with mode 0600, got one of user {} with mode {:04o}: \
             its contents allow forging file handles (if you remove it, the server creates a new one)",
            path.display(),
            meta.uid(),
            meta.mode() & 0o7777
        )));
    }
    let mut bytes = [0; LEN];
    let whole = meta.len() == LEN as u64 && file.read_exact(&mut bytes).is_ok();
    match whole {
        true => Ok(HandleKey::new(bytes)),
        false => Err(KeyError::Unsafe(format!(
            "{}: expected {LEN} bytes, got {} (if you remove it, the server creates a new one)",
            path.display(),
            meta.len()
        ))),
    }
}

/// Creates the secret atomically and durably, unless another process has already.
fn create(dir: &Path) -> Result<(), KeyError> {
    let suffix = u64::from_ne_bytes(sys::random::bytes().map_err(io::Error::from)?);
    let new = dir.join(format!("{FILE_NAME}.{suffix:016x}"));
    let secret: [u8; LEN] = sys::random::bytes().map_err(io::Error::from)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    let written = file.write_all(&secret).and_then(|()| file.sync_all());
    let placed = written.and_then(|()| {
        let to = dir.join(FILE_NAME);
        match rustix::fs::renameat_with(CWD, &new, CWD, &to, RenameFlags::NOREPLACE) {
            Err(rustix::io::Errno::EXIST) => fs::remove_file(&new),
            placed => Ok(placed?),
        }
    });
    if placed.is_err() {
        let _ = fs::remove_file(&new);
    }
    placed?;
    Ok(File::open(dir)?.sync_all()?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn loaded(dir: &Path) -> HandleKey {
        load(dir).unwrap_or_else(|_| panic!("no secret in {}", dir.display()))
    }

    fn refusal(dir: &Path) -> String {
        match load(dir) {
            Err(KeyError::Unsafe(why)) => why,
            _ => panic!("it is believed"),
        }
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
    }

    #[test]
    fn the_secret_is_the_owners_alone_and_the_same_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = dir.path().join("a/b");
        let key = loaded(&state);
        assert_eq!(loaded(&state), key);
        assert_ne!(loaded(&dir.path().join("other")), key);
        let mode = |path: &Path| fs::metadata(path).expect("there").mode() & 0o7777;
        assert_eq!(mode(&state), 0o700);
        assert_eq!(mode(&state.join(FILE_NAME)), 0o600);
        let names: Vec<_> = fs::read_dir(&state).expect("listed").collect();
        assert_eq!(names.len(), 1, "no other copy is left: {names:?}");
    }

    #[test]
    fn of_many_that_make_it_at_once_all_have_the_same() {
        let dir = tempfile::tempdir().expect("a directory");
        let keys: Vec<HandleKey> = std::thread::scope(|scope| {
            let each: Vec<_> = (0..8).map(|_| scope.spawn(|| loaded(dir.path()))).collect();
            each.into_iter()
                .map(|one| one.join().expect("made"))
                .collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]));
    }

    #[test]
    fn one_that_others_may_know_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(FILE_NAME);
        loaded(dir.path());
        for mode in [0o640, 0o604, 0o620] {
            chmod(&path, mode);
            let why = refusal(dir.path());
            assert!(
                why.contains("mode 0600") && why.contains(&format!("{mode:04o}")),
                "{why}"
            );
        }
        chmod(&path, 0o600);
        loaded(dir.path());
        for mode in [0o770, 0o707] {
            chmod(dir.path(), mode);
            assert!(refusal(dir.path()).contains("only its owner"));
        }
        chmod(dir.path(), 0o700);
        fs::write(&path, [7; 31]).expect("written");
        assert!(refusal(dir.path()).contains("32 bytes"));
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("/etc/passwd", &path).expect("linked");
        assert!(matches!(load(dir.path()), Err(KeyError::Failed(_))));
        fs::remove_file(&path).expect("removed");
        if rustix::process::geteuid().is_root() {
            loaded(dir.path());
            std::os::unix::fs::chown(&path, Some(65534), None).expect("given away");
            assert!(refusal(dir.path()).contains("user 65534"));
        }
    }
}
