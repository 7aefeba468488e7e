//! A connection with everything that the operations need.

use std::cell::Cell;
use std::time::{Duration, Instant};

use nfs::client::v4::{self, Root, SeqidEffect, StateId};
use nfs::client::{DirPage, Limits, Tree, v3};
use remote::nfs::{Compounds, Procedures};
use vfs::{Call, Caller, Cx, Errno, Result};

use super::calls::{look_up_v3, look_up_v4};
use super::servers::Server;
use crate::protocol::{LARGE, Operation};
use crate::rounds::Measurement;
use crate::workspace::{DATA_FILE, FILE_COUNT, SMALL_FILES_DIR, file_name};

/// The most operations in flight: the number of slots of a session.
pub(super) const MAX_DEPTH: usize = 64;

/// A connection with its file handles, open files and open-owners.
pub(super) struct Connection {
    pub(super) link: Link,
    caller: Caller,
    call: Call,
    pub(super) limits: Limits,
    pub(super) root: Handle,
    pub(super) small_files: Handle,
    pub(super) data: Open,
    pub(super) out: Open,
    /// The open-owners; each opens one file at a time.
    pub(super) owners: Vec<Owner>,
    /// v4.0: what the last operation with a seqid has done to it.
    pub(super) seqid_effect: Cell<SeqidEffect>,
    /// The names for lookups.
    pub(super) names: Vec<String>,
    pub(super) buffer: Vec<u8>,
}

pub(super) enum Link {
    V3(Box<Procedures>),
    V4(Compounds),
}

pub(super) type Handle = Box<[u8]>;

/// A file handle, and in v4 the stateid of its open.
#[derive(Default)]
pub(super) struct Open {
    pub(super) handle: Handle,
    pub(super) state: StateId,
}

/// An open-owner.
pub(super) struct Owner {
    /// The name of the owner, and of the file that it creates.
    pub(super) name: String,
    /// v4.0: the seqid of its next operation.
    next: Cell<u32>,
}

impl Owner {
    pub(super) fn next_seqid(&self) -> u32 {
        self.next.replace(self.next.get().wrapping_add(1))
    }
}

impl Connection {
    pub(super) fn new(
        link: Link,
        server: &Server,
        operation: Operation,
        number: usize,
    ) -> Result<Connection> {
        // The last two owners hold the files that stay open.
        let owners = (0..MAX_DEPTH + 2).map(|slot| Owner {
            name: format!("new{number}-{slot}"),
            next: Cell::new(0),
        });
        let names = match operation {
            Operation::LookUp => (0..FILE_COUNT).map(file_name).collect(),
            _ => Vec::new(),
        };
        let mut prepared = Connection {
            link,
            caller: Caller::new(
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            ),
            call: Call::detached(),
            limits: Limits { read: 0, write: 0 },
            root: Handle::default(),
            small_files: Handle::default(),
            data: Open::default(),
            out: Open::default(),
            owners: owners.collect(),
            seqid_effect: Cell::default(),
            names,
            buffer: vec![7; LARGE as usize],
        };
        prepared.root = prepared.root(server)?;
        prepared.limits = prepared.limits()?;
        prepared.small_files = prepared.find(SMALL_FILES_DIR)?;
        prepared.data = prepared.open(MAX_DEPTH, DATA_FILE.0, false)?;
        prepared.out = prepared.open(MAX_DEPTH + 1, &format!("out{number}"), true)?;
        if operation == Operation::Create
            && let Link::V4(_) = &prepared.link
        {
            // Confirms every owner in advance (v4.0).
            for slot in 0..MAX_DEPTH {
                let owner = &prepared.owners[slot];
                let made = prepared.open(slot, &owner.name, true)?;
                prepared.close(owner, made)?()?;
                prepared.remove(&owner.name)?()?;
            }
        }
        Ok(prepared)
    }

    pub(super) fn cx(&self) -> Cx<'_> {
        Cx::new(&self.caller, &self.call)
    }

    fn root(&self, server: &Server) -> Result<Handle> {
        let cx = &self.cx();
        match &self.link {
            Link::V3(_) => {
                let mount =
                    Procedures::open(server.dial(true, 3)).map_err(|error| error.errno())?;
                let path = server.path.as_bytes();
                mount.call(cx, &v3::Mount { path }, |root| root)
            }
            Link::V4(link) => {
                let root = link.call(cx, Root, |made| made.handle)?;
                let root = root.ok_or(Errno::EIO)?;
                match server.name {
                    Some(name) => self.find_in(&root, name),
                    None => Ok(root),
                }
            }
        }
    }

    fn limits(&self) -> Result<Limits> {
        let handle = &self.root;
        match &self.link {
            Link::V3(link) => link.call(&self.cx(), &v3::FsInfo { handle }, |limits| limits),
            Link::V4(link) => Ok(link.limits()),
        }
    }

    fn find(&self, name: &str) -> Result<Handle> {
        self.find_in(&self.root, name)
    }

    fn find_in(&self, dir: &[u8], name: &str) -> Result<Handle> {
        let cx = &self.cx();
        let found = match &self.link {
            Link::V3(link) => link.call(cx, &look_up_v3(dir, name), |made| made.handle),
            Link::V4(link) => link.call(cx, look_up_v4(dir, name), |made| made.handle),
        };
        found?.ok_or(Errno::EIO)
    }

    /// Opens a file of the root with its own open-owner.
    fn open(&self, owner: usize, name: &str, make: bool) -> Result<Open> {
        let cx = &self.cx();
        let link = match &self.link {
            Link::V3(link) => {
                let handle = match self.find(name) {
                    Err(Errno::ENOENT) if make => link
                        .call(cx, &self.create_v3(name), |made| made.handle)?
                        .ok_or(Errno::EIO)?,
                    found => found?,
                };
                let state = StateId::ANONYMOUS;
                return Ok(Open { handle, state });
            }
            Link::V4(link) => link,
        };
        let owner = &self.owners[owner];
        let opened = link.call(cx, self.open_v4(link, owner, name, make), |opened| opened)?;
        let (handle, mut state) = (opened.node.handle.ok_or(Errno::EIO)?, opened.state);
        if opened.confirm {
            let confirm = v4::OpenConfirm {
                handle: &handle,
                state,
                seqid: owner.next_seqid(),
                seqid_effect: &self.seqid_effect,
            };
            state = link.call(cx, confirm, |state| state)?;
        }
        Ok(Open { handle, state })
    }

    pub(super) fn list(&self, time: Duration, most: usize) -> Measurement {
        let began = Instant::now();
        let mut done = 0;
        while done < most && (done == 0 || began.elapsed() < time) {
            let mut listed = ListProgress::default();
            while !listed.end {
                self.page(&mut listed)?;
            }
            if listed.seen != FILE_COUNT {
                return Err(Errno::EIO);
            }
            done += 1;
        }
        Ok((done, began.elapsed()))
    }

    /// Reads the next page of entries.
    fn page(&self, listed: &mut ListProgress) -> Result<()> {
        // The size that barge's own client requests for listings.
        const COUNT: u32 = 64 << 10;
        let (cx, tree) = (&self.cx(), Tree::default());
        let (handle, cookie, verifier) = (&*self.small_files, listed.cookie, listed.verifier);
        match &self.link {
            Link::V3(link) => {
                let request = v3::ReadDir::<false> {
                    handle,
                    cookie,
                    verifier,
                    count: COUNT,
                    tree,
                };
                link.call(cx, &request, |page| listed.add(&page))
            }
            Link::V4(link) => {
                let request = v4::ReadDir {
                    handle,
                    cookie,
                    verifier,
                    count: COUNT,
                    plus: false,
                    tree,
                };
                link.call(cx, request, |page| listed.add(&page))
            }
        }
    }
}

/// The progress of a listing.
#[derive(Default)]
struct ListProgress {
    cookie: u64,
    verifier: [u8; 8],
    seen: usize,
    end: bool,
}

impl ListProgress {
    fn add(&mut self, page: &DirPage<'_>) {
        for entry in &page.entries {
            self.seen += usize::from(!matches!(entry.name, b"." | b".."));
            self.cookie = entry.cookie;
        }
        self.verifier = page.verifier;
        // A page without entries would repeat for ever.
        self.end = page.eof || page.entries.is_empty();
    }
}
