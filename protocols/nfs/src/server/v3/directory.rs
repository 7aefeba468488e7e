//! LOOKUP, READLINK, REMOVE, RMDIR, RENAME, LINK.

use vfs::{AttrMask, Entry, Errno, Kind, Name, RenameFlags};

use super::{ProcedureResult, StepError, StepResult};
use crate::server::{CallError, RequestContext};
use crate::v3::{
    Attributes, Handle, LinkArgs, LinkWcc, LookupOk, NameArgs, Outcome, ReadLinkOk, RenameArgs,
    RenameWcc, Status, Wcc,
};

impl RequestContext<'_> {
    pub(super) fn lookup(
        &self,
        args: NameArgs<'_>,
    ) -> ProcedureResult<LookupOk, Option<Attributes>> {
        self.with_node(self.directory(&args.dir), |dir| {
            let cx = self.cx();
            let found = match args.name {
                b"." => Entry {
                    node: dir.clone(),
                    attr: dir.attr(&cx, AttrMask::STAT)?,
                },
                b".." => dir.parent(&cx)?,
                name => dir.lookup(&cx, Name::new(name)?)?,
            };
            Ok(LookupOk {
                object: self.handle_of(&cx, &found.node)?,
                attributes: Some((&found.attr).into()),
                dir: self.attributes(dir),
            })
        })
    }

    pub(super) fn readlink(&mut self) -> Result<(), CallError> {
        let link: Handle = self.decode()?;
        let mut target = Vec::new();
        let outcome = self.with_node(self.object(&link), |node| {
            if node.kind() != Kind::Symlink {
                return Err(Status::Inval.into());
            }
            target = node.readlink(&self.cx())?;
            Ok(self.attributes(node))
        })?;
        let outcome = match outcome {
            Outcome::Done(attributes) => Outcome::Done(ReadLinkOk {
                attributes,
                target: &target,
            }),
            Outcome::Failed(status, attributes) => Outcome::Failed(status, attributes),
        };
        self.answer(&outcome);
        Ok(())
    }

    pub(super) fn remove(&self, args: NameArgs<'_>) -> Result<Outcome<Wcc, Wcc>, CallError> {
        self.unlink(args, false)
    }

    pub(super) fn rmdir(&self, args: NameArgs<'_>) -> Result<Outcome<Wcc, Wcc>, CallError> {
        self.unlink(args, true)
    }

    fn unlink(&self, args: NameArgs<'_>, is_dir: bool) -> Result<Outcome<Wcc, Wcc>, CallError> {
        let (result, wcc) = self.change(self.directory(&args.dir), |dir, _| {
            let (cx, name) = (self.cx(), checked_name(args.name)?);
            let victim = self.server.entry_to_remove(&cx, dir, name)?;
            dir.unlink(&cx, name, is_dir)?;
            self.server.forget_removed(&self.patient_cx(), victim);
            Ok(())
        })?;
        Ok(match result {
            Ok(()) => Outcome::Done(wcc),
            Err(status) => Outcome::Failed(status, wcc),
        })
    }

    pub(super) fn rename(
        &self,
        args: RenameArgs<'_>,
    ) -> Result<Outcome<RenameWcc, RenameWcc>, CallError> {
        let mut to_wcc = Wcc::default();
        let (result, from_wcc) = self.change(self.directory(&args.from.dir), |from, _| {
            let cx = self.cx();
            let to = self.directory(&args.to.dir)?;
            let before = to.attr(&cx, AttrMask::STAT)?;
            let result: StepResult<()> = (|| {
                let (name, to_name) = (checked_name(args.from.name)?, checked_name(args.to.name)?);
                let victim = self.server.entry_to_remove(&cx, &to, to_name)?;
                from.rename(&cx, name, &*to, to_name, RenameFlags::empty())?;
                self.server.forget_removed(&self.patient_cx(), victim);
                Ok(())
            })();
            if !matches!(result, Err(StepError::Later(_))) {
                to_wcc = self.wcc(&before, &to);
            }
            result
        })?;
        let wcc = RenameWcc {
            from: from_wcc,
            to: to_wcc,
        };
        Ok(match result {
            Ok(()) => Outcome::Done(wcc),
            Err(status) => Outcome::Failed(status, wcc),
        })
    }

    pub(super) fn link(&self, args: LinkArgs<'_>) -> Result<Outcome<LinkWcc, LinkWcc>, CallError> {
        let mut object = None;
        let (result, dir) = self.change(self.directory(&args.place.dir), |dir, _| {
            let node = self.object(&args.object)?;
            let done = dir.link(&self.cx(), Name::new(args.place.name)?, &*node);
            object = match &done {
                Ok(entry) => Some((&entry.attr).into()),
                Err(_) => self.attributes(&node),
            };
            done?;
            Ok(())
        })?;
        let wcc = LinkWcc { object, dir };
        Ok(match result {
            Ok(()) => Outcome::Done(wcc),
            Err(status) => Outcome::Failed(status, wcc),
        })
    }
}

/// Checks a name that must exist, or a rename's target: `EINVAL` for `.` and `..`, which cannot be
/// moved or removed.
fn checked_name(name: &[u8]) -> vfs::Result<Name<'_>> {
    Name::new(name).map_err(|errno| match errno {
        Errno::EEXIST => Errno::EINVAL,
        other => other,
    })
}
