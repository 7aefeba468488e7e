//! Calls in flight, in v3 and v4.

use nfs::client::v4::{self, Claim, Operations, Piece};
use nfs::client::{ClientCall, Stable, Tree, Written, v3};
use remote::nfs::{Compounds, Procedures};
use vfs::{Errno, OpenFlags, Result};

use super::connection::{Connection, Link, Open, Owner};

/// A call in flight: waits for the reply, and returns the file that it has opened, if any.
pub(super) type PendingReply<'c> = Box<dyn FnOnce() -> Result<Open> + 'c>;

impl Connection {
    pub(super) fn create_v3<'a>(&'a self, name: &'a str) -> v3::Create<'a> {
        v3::Create {
            dir: &self.root,
            name: name.as_bytes(),
            mode: 0o644,
            verifier: None,
            tree: Tree::default(),
        }
    }

    pub(super) fn open_v4<'a>(
        &'a self,
        link: &Compounds,
        owner: &'a Owner,
        name: &'a str,
        make: bool,
    ) -> v4::Open<'a> {
        let (claim, flags) = match make {
            false => (Claim::Name(&self.root, name.as_bytes()), OpenFlags::READ),
            true => (
                Claim::Create(&self.root, name.as_bytes(), 0o644),
                OpenFlags::READ | OpenFlags::WRITE,
            ),
        };
        v4::Open {
            client: link.client(),
            owner: owner.name.as_bytes(),
            seqid: owner.next_seqid(),
            seqid_effect: &self.seqid_effect,
            flags,
            // v4.0 has no `OPEN4_SHARE_ACCESS_WANT_NO_DELEG`.
            refuse_delegation: link.minor() > 0,
            claim,
            tree: Tree::default(),
        }
    }

    pub(super) fn read(&self, offset: u64, count: u32) -> Result<PendingReply<'_>> {
        // A short read is an error: a server that returns less is not faster.
        let whole = move |data: &[u8]| check_len(data.len(), count);
        let Open { handle, state } = &self.data;
        match &self.link {
            Link::V3(link) => {
                let read = v3::Read {
                    handle,
                    offset,
                    count,
                };
                self.send_v3(link, read, move |read| whole(read.data))
            }
            Link::V4(link) => {
                let read = v4::Read {
                    handle,
                    state: *state,
                    offset,
                    count,
                    plus: false,
                };
                self.send_v4(link, read, move |read| match read.first {
                    Some(Piece::Data(data)) => whole(data),
                    _ => Err(Errno::EIO),
                })
            }
        }
    }

    pub(super) fn write(&self, offset: u64, count: u32) -> Result<PendingReply<'_>> {
        let whole = move |written: Written| check_len(written.count as usize, count);
        let Open { handle, state } = &self.out;
        let data = &self.buffer[..count as usize];
        let stable = Stable::Unstable;
        match &self.link {
            Link::V3(link) => {
                let write = v3::Write {
                    handle,
                    offset,
                    stable,
                    data,
                };
                self.send_v3(link, write, whole)
            }
            Link::V4(link) => {
                let write = v4::Write {
                    handle,
                    state: *state,
                    offset,
                    stable,
                    data,
                };
                self.send_v4(link, write, whole)
            }
        }
    }

    pub(super) fn attributes(&self) -> Result<PendingReply<'_>> {
        let (handle, tree) = (&*self.data.handle, Tree::default());
        match &self.link {
            Link::V3(link) => self.send_v3(link, v3::GetAttr { handle, tree }, |_| no_file()),
            Link::V4(link) => self.send_v4(link, v4::GetAttr { handle, tree }, |_| no_file()),
        }
    }

    pub(super) fn look_up<'c>(&'c self, name: &'c str) -> Result<PendingReply<'c>> {
        match &self.link {
            Link::V3(link) => {
                self.send_v3(link, look_up_v3(&self.small_files, name), |_| no_file())
            }
            Link::V4(link) => {
                self.send_v4(link, look_up_v4(&self.small_files, name), |_| no_file())
            }
        }
    }

    pub(super) fn create<'c>(&'c self, owner: &'c Owner) -> Result<PendingReply<'c>> {
        let name = &owner.name;
        match &self.link {
            Link::V3(link) => self.send_v3(link, self.create_v3(name), |_| no_file()),
            Link::V4(link) => {
                let open = self.open_v4(link, owner, name, true);
                self.send_v4(link, open, |opened| match opened.node.handle {
                    Some(handle) if !opened.confirm => Ok(Open {
                        handle,
                        state: opened.state,
                    }),
                    _ => Err(Errno::EIO),
                })
            }
        }
    }

    /// Closes a file that `owner` has opened.
    pub(super) fn close<'c>(&'c self, owner: &Owner, open: Open) -> Result<PendingReply<'c>> {
        let Link::V4(link) = &self.link else {
            return Err(Errno::EINVAL);
        };
        let seqid = owner.next_seqid();
        let cx = self.cx();
        let pending = link.begin(&cx, &self.close_v4(&open, seqid))?;
        let pending = pending.ok_or(Errno::EAGAIN)?;
        Ok(Box::new(move || {
            let done = link.end(&cx, pending, &self.close_v4(&open, seqid), |()| ());
            done.map_err(|failure| failure.errno())?;
            no_file()
        }))
    }

    fn close_v4<'a>(&'a self, open: &'a Open, seqid: u32) -> v4::Close<'a> {
        v4::Close {
            handle: &open.handle,
            state: open.state,
            seqid,
            seqid_effect: &self.seqid_effect,
        }
    }

    pub(super) fn remove<'c>(&'c self, name: &'c str) -> Result<PendingReply<'c>> {
        let (dir, name) = (&*self.root, name.as_bytes());
        match &self.link {
            Link::V3(link) => self.send_v3(link, v3::Remove::<false> { dir, name }, |()| no_file()),
            Link::V4(link) => {
                let remove = v4::Remove {
                    dir,
                    name,
                    directory: false,
                };
                self.send_v4(link, remove, |()| no_file())
            }
        }
    }

    /// Sends a v3 call.
    fn send_v3<'c, A: ClientCall + 'c>(
        &'c self,
        link: &'c Procedures,
        request: A,
        read: impl FnOnce(A::Answer<'_>) -> Result<Open> + 'c,
    ) -> Result<PendingReply<'c>> {
        let cx = self.cx();
        let pending = link.begin(&cx, &request);
        Ok(Box::new(move || {
            let answer = link.end(&cx, pending, &request, read);
            answer.map_err(|failure| failure.errno())?
        }))
    }

    /// Sends a v4 compound.
    fn send_v4<'c, S: Operations + 'c>(
        &'c self,
        link: &'c Compounds,
        operations: S,
        read: impl FnMut(S::Answer<'_>) -> Result<Open> + 'c,
    ) -> Result<PendingReply<'c>> {
        let cx = self.cx();
        let pending = link.begin(&cx, &operations)?.ok_or(Errno::EAGAIN)?;
        Ok(Box::new(move || {
            let answer = link.end(&cx, pending, &operations, read);
            answer.map_err(|failure| failure.errno())?
        }))
    }
}

pub(super) fn look_up_v3<'a>(dir: &'a [u8], name: &'a str) -> v3::Lookup<'a> {
    v3::Lookup {
        dir,
        name: name.as_bytes(),
        tree: Tree::default(),
    }
}

pub(super) fn look_up_v4<'a>(dir: &'a [u8], name: &'a str) -> v4::Lookup<'a> {
    v4::Lookup {
        dir,
        name: Some(name.as_bytes()),
        tree: Tree::default(),
    }
}

fn check_len(got: usize, count: u32) -> Result<Open> {
    match got == count as usize {
        true => no_file(),
        false => Err(Errno::EIO),
    }
}

/// Returns the result of a call that opens no file.
fn no_file() -> Result<Open> {
    Ok(Open::default())
}
