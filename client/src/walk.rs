//! Recursive directory walks.

use std::io;
use std::path::PathBuf;

use crate::{Client, Metadata};

/// The iterator of [`Client::walk`]: paths that begin with the given one, and attributes, a
/// symbolic link's own. A directory that cannot be listed yields an error in its place, and the
/// walk continues after it.
pub struct Walk {
    client: Client,
    /// Directories still to be listed, the next one last.
    to_list: Vec<PathBuf>,
    /// Listed entries still to be returned, the next one last.
    listed: Vec<(PathBuf, Option<Metadata>)>,
}

impl Walk {
    pub(crate) fn new(client: Client, path: PathBuf) -> Walk {
        Walk {
            client,
            to_list: vec![path],
            listed: Vec::new(),
        }
    }
}

impl Iterator for Walk {
    type Item = io::Result<(PathBuf, Metadata)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(dir) = self.to_list.pop() {
                match self.client.read_dir(&dir) {
                    Ok(entries) => self.listed.extend(
                        entries
                            .into_iter()
                            .rev()
                            .map(|entry| (dir.join(entry.name), entry.metadata)),
                    ),
                    Err(error) => return Some(Err(error)),
                }
            }
            let (path, metadata) = self.listed.pop()?;
            let found = match metadata {
                Some(metadata) => Ok(metadata),
                None => self.client.symlink_metadata(&path),
            };
            match found {
                Ok(metadata) => {
                    if metadata.is_dir() {
                        self.to_list.push(path.clone());
                    }
                    return Some(Ok((path, metadata)));
                }
                // Removed since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
