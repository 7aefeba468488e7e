//! Calls in flight, in v3 and v4.

use nfs::client::v4::{self, Claim, Operations, Piece};
use nfs::client::{ClientCall, Stable, Tree, Written, v3};
use remote::nfs::{Compounds, Procedures};
use vfs::{Errno, OpenFlags, Result};

use super::prepared::{Link, Open, Owner, Prepared};

/// A call in flight: waits for the reply, and returns the file that it has opened, if any.
pub(super) type Flight<'c> = Box<dyn FnOnce() -> Result<Open> + 'c>;

impl Prepared {
    pub(super) fn create_3<'a>(&'a self, name: &'a str) -> v3::Create<'a> {
        v3::Create {
            dir: &self.root,
            name: name.as_bytes(),
            mode: 0o644,
            attempt: None,
            tree: Tree::default(),
        }
    }

    pub(super) fn open_4<'a>(
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
            seqid: owner.number(),
            counts: &self.counts,
            flags,
            // v4.0 has no `OPEN4_SHARE_ACCESS_WANT_NO_DELEG`.
            refuse_delegation: link.minor() > 0,
            claim,
            tree: Tree::default(),
        }
    }

    pub(super) fn read(&self, offset: u64, count: u32) -> Result<Flight<'_>> {
        // A short read is an error: a server that returns less is not faster.
        let whole = move |data: &[u8]| all(data.len(), count);
        let Open { handle, state } = &self.data;
        match &self.link {
            Link::Three(link) => {
                let read = v3::Read {
                    handle,
                    offset,
                    count,
                };
                self.three(link, read, move |read| whole(read.data))
            }
            Link::Four(link) => {
                let read = v4::Read {
                    handle,
                    state: *state,
                    offset,
                    count,
                    plus: false,
                };
                self.four(link, read, move |read| match read.first {
                    Some(Piece::Data(data)) => whole(data),
                    _ => Err(Errno::EIO),
                })
            }
        }
    }

    pub(super) fn write(&self, offset: u64, count: u32) -> Result<Flight<'_>> {
        let whole = move |written: Written| all(written.count as usize, count);
        let Open { handle, state } = &self.out;
        let data = &self.buffer[..count as usize];
        let stable = Stable::Unstable;
        match &self.link {
            Link::Three(link) => {
                let write = v3::Write {
                    handle,
                    offset,
                    stable,
                    data,
                };
                self.three(link, write, whole)
            }
            Link::Four(link) => {
                let write = v4::Write {
                    handle,
                    state: *state,
                    offset,
                    stable,
                    data,
                };
                self.four(link, write, whole)
            }
        }
    }

    pub(super) fn attributes(&self) -> Result<Flight<'_>> {
        let (handle, tree) = (&*self.data.handle, Tree::default());
        match &self.link {
            Link::Three(link) => self.three(link, v3::GetAttr { handle, tree }, |_| nothing()),
            Link::Four(link) => self.four(link, v4::GetAttr { handle, tree }, |_| nothing()),
        }
    }

    pub(super) fn look_up<'c>(&'c self, name: &'c str) -> Result<Flight<'c>> {
        match &self.link {
            Link::Three(link) => self.three(link, look_up_3(&self.many, name), |_| nothing()),
            Link::Four(link) => self.four(link, look_up_4(&self.many, name), |_| nothing()),
        }
    }

    pub(super) fn create<'c>(&'c self, owner: &'c Owner) -> Result<Flight<'c>> {
        let name = &owner.name;
        match &self.link {
            Link::Three(link) => self.three(link, self.create_3(name), |_| nothing()),
            Link::Four(link) => {
                let open = self.open_4(link, owner, name, true);
                self.four(link, open, |opened| match opened.made.handle {
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
    pub(super) fn close<'c>(&'c self, owner: &Owner, open: Open) -> Result<Flight<'c>> {
        let Link::Four(link) = &self.link else {
            return Err(Errno::EINVAL);
        };
        let seqid = owner.number();
        let cx = self.cx();
        let turn = link.begin(&cx, &self.close_4(&open, seqid))?;
        let turn = turn.ok_or(Errno::EAGAIN)?;
        Ok(Box::new(move || {
            let done = link.end(&cx, turn, &self.close_4(&open, seqid), |()| ());
            done.map_err(|failure| failure.errno())?;
            nothing()
        }))
    }

    fn close_4<'a>(&'a self, open: &'a Open, seqid: u32) -> v4::Close<'a> {
        v4::Close {
            handle: &open.handle,
            state: open.state,
            seqid,
            counts: &self.counts,
        }
    }

    pub(super) fn remove<'c>(&'c self, name: &'c str) -> Result<Flight<'c>> {
        let (dir, name) = (&*self.root, name.as_bytes());
        match &self.link {
            Link::Three(link) => {
                self.three(link, v3::Remove::<false> { dir, name }, |()| nothing())
            }
            Link::Four(link) => {
                let remove = v4::Remove {
                    dir,
                    name,
                    directory: false,
                };
                self.four(link, remove, |()| nothing())
            }
        }
    }

    /// Sends a v3 call.
    fn three<'c, A: ClientCall + 'c>(
        &'c self,
        link: &'c Procedures,
        ask: A,
        read: impl FnOnce(A::Answer<'_>) -> Result<Open> + 'c,
    ) -> Result<Flight<'c>> {
        let cx = self.cx();
        let flight = link.begin(&cx, &ask);
        Ok(Box::new(move || {
            let answer = link.end(&cx, flight, &ask, read);
            answer.map_err(|failure| failure.errno())?
        }))
    }

    /// Sends a v4 compound.
    fn four<'c, S: Operations + 'c>(
        &'c self,
        link: &'c Compounds,
        operations: S,
        read: impl FnMut(S::Answer<'_>) -> Result<Open> + 'c,
    ) -> Result<Flight<'c>> {
        let cx = self.cx();
        let turn = link.begin(&cx, &operations)?.ok_or(Errno::EAGAIN)?;
        Ok(Box::new(move || {
            let answer = link.end(&cx, turn, &operations, read);
            answer.map_err(|failure| failure.errno())?
        }))
    }
}

pub(super) fn look_up_3<'a>(dir: &'a [u8], name: &'a str) -> v3::Lookup<'a> {
    v3::Lookup {
        dir,
        name: name.as_bytes(),
        tree: Tree::default(),
    }
}

pub(super) fn look_up_4<'a>(dir: &'a [u8], name: &'a str) -> v4::Lookup<'a> {
    v4::Lookup {
        dir,
        name: Some(name.as_bytes()),
        tree: Tree::default(),
    }
}

fn all(got: usize, count: u32) -> Result<Open> {
    match got == count as usize {
        true => nothing(),
        false => Err(Errno::EIO),
    }
}

/// Returns the result of a call that opens no file.
fn nothing() -> Result<Open> {
    Ok(Open::default())
}
