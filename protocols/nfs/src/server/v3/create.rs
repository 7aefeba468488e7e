//! CREATE, MKDIR, SYMLINK, MKNOD.

use std::sync::Arc;

use vfs::{
    Attr, Device, Entry, Errno, Kind, Mode, Name, NewNode, Node, OpenFlags, SetAttr, SetTime,
};

use super::{ProcedureResult, StepResult};
use crate::server::{CallError, RequestContext, exclusive_create};
use crate::v3::{
    CreateArgs, CreateHow, CreateOk, DeviceData, MkDirArgs, MkNodArgs, MkNodData, NameArgs,
    Outcome, SetAttributes, Status, SymlinkArgs, Verifier, Wcc,
};

impl RequestContext<'_> {
    pub(super) fn create(&self, args: CreateArgs<'_>) -> ProcedureResult<CreateOk, Wcc> {
        self.made(&args.place, |dir, name| match args.how {
            CreateHow::Unchecked(set) => match self.create_new(dir, name, &set) {
                Err(Errno::EEXIST) => self.take_existing(dir, name, &set),
                done => Ok(done?),
            },
            CreateHow::Guarded(set) => Ok(self.create_new(dir, name, &set)?),
            CreateHow::Exclusive(verifier) => self.create_exclusive(dir, name, verifier),
        })
    }

    pub(super) fn mkdir(&self, args: MkDirArgs<'_>) -> ProcedureResult<CreateOk, Wcc> {
        self.make(&args.place, NewNode::Directory, &args.attributes)
    }

    pub(super) fn symlink(&self, args: SymlinkArgs<'_>) -> ProcedureResult<CreateOk, Wcc> {
        self.made(&args.place, |dir, name| {
            check_target(args.target)?;
            // A symbolic link has no mode of its own; the client's is ignored.
            let set = SetAttributes {
                mode: Some(0o777),
                ..args.attributes
            };
            Ok(self.make_new(dir, name, NewNode::Symlink(args.target), &set)?)
        })
    }

    pub(super) fn mknod(&self, args: MkNodArgs<'_>) -> ProcedureResult<CreateOk, Wcc> {
        let device = |data: &DeviceData| Device {
            major: data.device.major,
            minor: data.device.minor,
        };
        let (what, set) = match &args.what {
            MkNodData::BlockDevice(data) => (NewNode::BlockDevice(device(data)), &data.attributes),
            MkNodData::CharDevice(data) => (NewNode::CharDevice(device(data)), &data.attributes),
            MkNodData::Socket(set) => (NewNode::Socket, set),
            MkNodData::Fifo(set) => (NewNode::Fifo, set),
            MkNodData::File | MkNodData::Directory | MkNodData::Symlink => {
                return self.made(&args.place, |_, _| Err(Status::Badtype.into()));
            }
        };
        self.make(&args.place, what, set)
    }

    fn make(
        &self,
        location: &NameArgs<'_>,
        what: NewNode<'_>,
        set: &SetAttributes,
    ) -> ProcedureResult<CreateOk, Wcc> {
        self.made(location, |dir, name| {
            Ok(self.make_new(dir, name, what, set)?)
        })
    }

    /// Creates a node at `location` with `make`, and returns the results for the client.
    fn made(
        &self,
        location: &NameArgs<'_>,
        make: impl FnOnce(&Arc<dyn Node>, Name<'_>) -> StepResult<Entry>,
    ) -> Result<Outcome<CreateOk, Wcc>, CallError> {
        let (result, dir) = self.change(self.directory(&location.dir), |dir, _| {
            let entry = make(dir, Name::new(location.name)?)?;
            let object = self.handle_of(&self.patient_cx(), &entry.node)?;
            Ok((object, entry.attr))
        })?;
        Ok(match result {
            Ok((object, attr)) => Outcome::Done(CreateOk {
                object: Some(object),
                attributes: Some((&attr).into()),
                dir,
            }),
            Err(status) => Outcome::Failed(status, dir),
        })
    }

    fn make_new(
        &self,
        dir: &Arc<dyn Node>,
        name: Name<'_>,
        what: NewNode<'_>,
        set: &SetAttributes,
    ) -> vfs::Result<Entry> {
        let mut entry = dir.make(&self.cx(), name, what, mode(set))?;
        if let Some(rest) = rest(set, &entry.attr) {
            entry.attr = entry.node.setattr(&self.patient_cx(), &rest)?;
        }
        Ok(entry)
    }

    /// Creates a file, and caches it open: its creator may write to it regardless of its mode.
    fn create_new(
        &self,
        dir: &Arc<dyn Node>,
        name: Name<'_>,
        set: &SetAttributes,
    ) -> vfs::Result<Entry> {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let (mut entry, file) = dir.create(&self.cx(), name, flags | OpenFlags::EXCL, mode(set))?;
        if let Some(rest) = rest(set, &entry.attr) {
            entry.attr = file.setattr(&self.patient_cx(), &rest)?;
        }
        let id = entry.node.id();
        self.server.cache_file(&self.cx(), id, flags, file);
        Ok(entry)
    }

    /// Returns an existing file for an UNCHECKED create; of the attributes only the size is
    /// applied.
    fn take_existing(
        &self,
        dir: &Arc<dyn Node>,
        name: Name<'_>,
        set: &SetAttributes,
    ) -> StepResult<Entry> {
        let mut entry = dir.lookup(&self.cx(), name)?;
        if entry.attr.kind != Kind::File {
            return Err(Status::Exist.into());
        }
        if set.size.is_some() {
            let size = SetAttr {
                size: set.size,
                kill_priv: true,
                ..SetAttr::default()
            };
            entry.attr = entry.node.setattr(&self.cx(), &size)?;
        }
        Ok(entry)
    }

    fn create_exclusive(
        &self,
        dir: &Arc<dyn Node>,
        name: Name<'_>,
        verifier: Verifier,
    ) -> StepResult<Entry> {
        let [atime, mtime] =
            exclusive_create::times(verifier).map(|time| crate::v3::SetTime::At(time.into()));
        let set = SetAttributes {
            mode: Some(0),
            atime,
            mtime,
            ..SetAttributes::default()
        };
        match self.create_new(dir, name, &set) {
            Err(Errno::EEXIST) => {}
            done => return Ok(done?),
        }
        let entry = dir.lookup(&self.cx(), name)?;
        let attr = &entry.attr;
        let is_it = attr.kind == Kind::File
            && attr.size == 0
            && exclusive_create::is_made_with(attr, verifier);
        if is_it {
            Ok(entry)
        } else {
            Err(Status::Exist.into())
        }
    }
}

/// Returns the mode of a new node; the client has already applied its umask.
fn mode(set: &SetAttributes) -> Mode {
    Mode::without_umask(set.mode.unwrap_or(0) & 0o7777)
}

/// Returns the attributes that remain to be set after a node was created; `None` if there are none.
fn rest(set: &SetAttributes, made: &Attr) -> Option<SetAttr> {
    let set = SetAttr::from(set);
    let differs = |new: Option<u32>, is: u32| new.filter(|&new| new != is);
    let rest = SetAttr {
        mode: None,
        uid: differs(set.uid, made.uid),
        gid: differs(set.gid, made.gid),
        size: set
            .size
            .filter(|&size| made.kind == Kind::File && size != made.size),
        // A new node's times are already the current time.
        atime: set.atime.filter(|&time| time != SetTime::Now),
        mtime: set.mtime.filter(|&time| time != SetTime::Now),
        ..SetAttr::default()
    };
    (rest != SetAttr::default()).then_some(rest)
}

/// Checks the target of a symbolic link as symlink(2) does.
fn check_target(target: &[u8]) -> vfs::Result<()> {
    /// Linux's `PATH_MAX` without its NUL.
    const MOST: usize = 4095;
    match target {
        b"" => Err(Errno::ENOENT),
        _ if target.len() > MOST => Err(Errno::ENAMETOOLONG),
        _ if target.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}
