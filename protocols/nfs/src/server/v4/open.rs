//! OPEN, OPEN_CONFIRM, OPEN_DOWNGRADE, CLOSE (RFC 8881 sections 18.2, 18.16, 18.18; RFC 7530
//! section 16.18).

use std::sync::Arc;

use vfs::{
    Access, AttrMask, Entry, Errno, File, Kind, Mode, Node, OpenFlags, SetAttr, may_be_exec_open,
    or_open_for_exec,
};

use super::attr::NOT_EXCLUSIVE;
use super::compound::{Compound, OpError, OpResult};
use super::delegation::DelegationRequest;
use super::lookup::component;
use super::open_file::{ExportTree, OpenFile};
use super::setattr::{Change, to_set};
use super::state::{ClientRef, OpenArgs, Share};
use crate::server::RequestContext;
use crate::server::exclusive_create;
use crate::v4::Status;
use crate::v4::attr::{Attributes, Bitmap, number as n};
use crate::v4::op::{
    Claim, ClaimDelegated, Close, CreateHow, Open, OpenConfirm, OpenDowngrade, OpenHow,
};
use crate::v4::reply::{Delegation, Opened};
use crate::v4::types::ChangeInfo;

/// Flags of OPEN's result.
mod flag {
    /// The open-owner must be confirmed (v4.0).
    pub(super) const CONFIRM: u32 = 0x2;
    /// Locks have the semantics of fcntl(2).
    pub(super) const LOCKTYPE_POSIX: u32 = 0x4;
    /// CB_NOTIFY_LOCK may announce a lock to its waiters (v4.1).
    pub(super) const MAY_NOTIFY_LOCK: u32 = 0x20;
}

/// The file that an OPEN found or created.
struct OpenTarget {
    node: Arc<dyn Node>,
    /// The open file, if the OPEN created it.
    file: Option<Arc<dyn File>>,
    change: ChangeInfo,
    attributes_set: Bitmap,
    /// Whether the file existed and is to be truncated.
    truncate: bool,
}

impl OpenTarget {
    /// Returns the result for a file that existed.
    fn existing(node: Arc<dyn Node>, change: ChangeInfo) -> OpenTarget {
        OpenTarget {
            node,
            file: None,
            change,
            attributes_set: Bitmap::default(),
            truncate: false,
        }
    }
}

impl RequestContext<'_, Compound> {
    pub(super) fn open(&mut self, args: Open<'_>) -> OpResult {
        if self.compound.minor > 0 {
            let client = self.session_client()?;
            return self.open_as(&client, args);
        }
        self.check_client(args.owner.client)?;
        let server = self.server;
        let begin = || {
            server
                .state
                .start_open(args.owner.client, args.owner.name, args.seqid)
        };
        self.serve_owner_request(begin, |request, client| {
            request.open_as(client, args.clone())
        })
    }

    fn open_as(&mut self, client: &ClientRef<ExportTree>, args: Open<'_>) -> OpResult {
        let (access, deny) = shares(self.compound.minor, args.access, args.deny)?;
        let state = &self.server.state;
        let reclaim = matches!(args.claim, Claim::Previous(_));
        // Checked before anything is created.
        if !reclaim && state.in_grace() {
            return Err(Status::Grace.into());
        }
        let found = match &args.claim {
            Claim::Null(bytes) => self.find(bytes, &args.how, access)?,
            Claim::Handle if self.compound.minor > 0 => self.find_current(&args.how)?,
            Claim::Previous(_) => self.find_current(&OpenHow::NoCreate)?,
            Claim::DelegateCurrent(claim) => self.find(claim.name, &OpenHow::NoCreate, access)?,
            Claim::DelegateCurrentHandle(_) if self.compound.minor > 0 => {
                self.find_current(&OpenHow::NoCreate)?
            }
            _ => return Err(Status::Notsupp.into()),
        };
        self.check_opened(&found.node)?;
        let key = self.key(&found.node);
        let delegated = match &args.claim {
            Claim::DelegateCurrent(ClaimDelegated { state: stateid, .. })
            | Claim::DelegateCurrentHandle(stateid) => {
                let delegated = state.delegated(client, stateid, key, access)?;
                Some(self.opened(delegated.file))
            }
            _ => self.delegated(client, key, access),
        };
        self.clear_of_delegations(client, key, deny)?;
        let open_args = OpenArgs {
            owner: args.owner.name,
            key,
            node: self.located(found.node.clone()),
            access,
            deny,
            reclaim,
        };
        let opening = match state.open(client, open_args) {
            // `ACCESS` takes precedence over `SHARE_DENIED`.
            Err(Status::ShareDenied) => {
                self.check_access(&found.node, access)?;
                return Err(Status::ShareDenied.into());
            }
            opening => opening?,
        };
        // A delegated file is not opened again: that would break the lease.
        let held = opening.held().cloned().or(delegated);
        let file = match (found.file, held) {
            (Some(file), _) => self.opened(file),
            (None, Some(held)) => {
                self.check_access(&found.node, access)?;
                held
            }
            (None, None) if reclaim => {
                let server = self.server;
                let file = server.file(&self.cx(), &found.node, flags(access))?;
                // The file may be leased later: other requests must not share this open then.
                server.files.forget(found.node.id());
                self.opened(file)
            }
            (None, None) => {
                let (cx, flags) = (self.cx(), flags(access));
                let opened = found.node.open(&cx, flags);
                self.opened(or_open_for_exec(&*found.node, &cx, flags, opened)?)
            }
        };
        if found.truncate {
            let cut = SetAttr {
                size: Some(0),
                kill_priv: true,
                ..SetAttr::default()
            };
            match access.contains(Share::WRITE) {
                true => file.file.setattr(&self.cx(), &cut)?,
                false => found.node.setattr(&self.cx(), &cut)?,
            };
        }
        self.forbid_restart();
        let opened = opening.commit(file.clone())?;
        let delegation = match &args.claim {
            Claim::DelegateCurrent(_) | Claim::DelegateCurrentHandle(_) => Delegation::None,
            claim => {
                let again = matches!(claim, Claim::Previous(kind) if *kind != 0);
                let requested = DelegationRequest {
                    access: args.access,
                    share: access,
                    reclaim: again,
                };
                match claim {
                    Claim::Previous(0) => Delegation::None,
                    // The client sets the times after an exclusive create, which hold the verifier
                    // until then.
                    _ if is_exclusive(&args.how) => Delegation::None,
                    _ => self.delegation(client, &found.node, &file, &requested),
                }
            }
        };
        self.set_current(found.node);
        self.compound.stateid = Some(opened.stateid);
        let confirm = if opened.confirm { flag::CONFIRM } else { 0 };
        let notify = if state.may_notify_lock(client) {
            flag::MAY_NOTIFY_LOCK
        } else {
            0
        };
        self.reply.value(&Opened {
            state: opened.stateid,
            change: found.change,
            flags: flag::LOCKTYPE_POSIX | confirm | notify,
            set: found.attributes_set,
            delegation,
        });
        Ok(())
    }

    /// Finds the current file itself.
    fn find_current(&mut self, how: &OpenHow<'_>) -> Result<OpenTarget, OpError> {
        let change = ChangeInfo {
            atomic: false,
            before: 0,
            after: 0,
        };
        let (node, cx) = (self.node()?, self.cx());
        let attr = node.attr(&cx, AttrMask::BASIC)?;
        self.server.check_exists(&cx, &node, &attr)?;
        let mut found = OpenTarget::existing(node, change);
        match how {
            OpenHow::NoCreate => {}
            // Handled like a file found by name.
            OpenHow::Create(CreateHow::Unchecked(attributes)) => {
                (found.truncate, found.attributes_set) = self.truncates(attributes)?;
            }
            OpenHow::Create(_) => return Err(Status::Inval.into()),
        }
        Ok(found)
    }

    /// Finds the file of this name in the current directory, or creates it if `how` asks for that.
    fn find(
        &mut self,
        bytes: &[u8],
        how: &OpenHow<'_>,
        access: Share,
    ) -> Result<OpenTarget, OpError> {
        let directory = self.directory()?;
        let child = component(bytes)?;
        let cx = self.cx();
        let before = self.change(&directory)?;
        let OpenHow::Create(how) = how else {
            let entry = directory.lookup(&cx, child)?;
            let change = self.change_since(before, &directory);
            return Ok(OpenTarget::existing(entry.node, change));
        };
        let none = Attributes::default();
        let (attributes, verifier) = match how {
            CreateHow::Unchecked(attributes) | CreateHow::Guarded(attributes) => (attributes, None),
            CreateHow::Exclusive(verifier) => (&none, Some(*verifier)),
            CreateHow::Exclusive41(both) => (&both.attributes, Some(both.verifier)),
        };
        if verifier.is_some() && !attributes.set().and(&NOT_EXCLUSIVE).is_empty() {
            return Err(Status::Inval.into());
        }
        let (mode, mut rest) = match matches!(how, CreateHow::Exclusive(_)) {
            true => (Mode::without_umask(0o600), Change::default()),
            false => self.attributes_of_new(attributes, Kind::File)?,
        };
        if let Some(verifier) = verifier {
            let [atime, mtime] = exclusive_create::times(verifier);
            rest.set.atime = Some(vfs::SetTime::At(atime));
            rest.set.mtime = Some(vfs::SetTime::At(mtime));
        }
        match directory.create(&cx, child, flags(access) | OpenFlags::EXCL, mode) {
            Ok((Entry { node, .. }, file)) => {
                self.forbid_restart();
                let mut set = self.finish_new(&node, &rest);
                if verifier.is_some() {
                    // The client sets the real times afterwards.
                    set = set.or(&VERIFIER);
                }
                Ok(OpenTarget {
                    node,
                    file: Some(file),
                    change: self.change_since(before, &directory),
                    attributes_set: set,
                    truncate: false,
                })
            }
            Err(Errno::EEXIST) => {
                let entry = directory.lookup(&cx, child)?;
                let change = self.change_since(before, &directory);
                let mut found = OpenTarget::existing(entry.node, change);
                match (how, verifier) {
                    (CreateHow::Unchecked(attributes), _) => {
                        (found.truncate, found.attributes_set) = self.truncates(attributes)?;
                    }
                    // A retransmission of a request whose reply was lost.
                    (_, Some(verifier))
                        if exclusive_create::is_made_with(
                            &found.node.attr(&cx, AttrMask::STAT)?,
                            verifier,
                        ) =>
                    {
                        found.attributes_set = rest.attributes.or(&VERIFIER);
                    }
                    _ => return Err(Status::Exist.into()),
                }
                Ok(found)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns whether an existing file is to be truncated to nothing, and which attributes that
    /// sets: of the attributes to create with, only a size of zero applies to an existing file.
    fn truncates(&self, attributes: &Attributes<'_>) -> Result<(bool, Bitmap), Status> {
        to_set(self.server, self.compound.minor, attributes, Kind::File)?;
        Ok(match attributes.size {
            Some(0) => (true, Bitmap::of(&[n::SIZE])),
            _ => (false, Bitmap::default()),
        })
    }

    /// Returns the error of opening a node that is not a regular file.
    fn check_opened(&self, node: &Arc<dyn Node>) -> Result<(), Status> {
        match node.kind() {
            Kind::Symlink => Err(Status::Symlink),
            Kind::File | Kind::Directory => self.check_regular(node),
            // RFC 7530 section 16.16.6 has `SYMLINK` for links and for everything else.
            _ if self.compound.minor == 0 => Err(Status::Symlink),
            _ => self.check_regular(node),
        }
    }

    /// Returns the state of a file that the caller has opened.
    pub(super) fn opened(&self, file: Arc<dyn File>) -> OpenFile {
        OpenFile {
            file,
            caller: self.caller.clone(),
            hole_hint: Arc::default(),
            addr: self.call.addr(),
            _lease: None,
        }
    }

    /// Checks that the caller could open `node` for `access`. [`or_open_for_exec`] applies here as
    /// well.
    pub(super) fn check_access(&self, node: &Arc<dyn Node>, access: Share) -> Result<(), OpError> {
        let mut want = Access::empty();
        want.set(Access::READ, access.contains(Share::READ));
        want.set(Access::WRITE, access.contains(Share::WRITE));
        let executes = may_be_exec_open(&**node, &self.cx(), flags(access));
        let also = match executes {
            true => Access::EXEC,
            false => Access::empty(),
        };
        let may = node.access(&self.cx(), want | also)?;
        match may.contains(want) || executes && may.contains(Access::EXEC) {
            true => Ok(()),
            false => Err(Status::Access.into()),
        }
    }

    pub(super) fn open_confirm(&mut self, args: OpenConfirm) -> OpResult {
        let key = self.key(&self.node()?);
        self.check_holder(&args.state)?;
        let server = self.server;
        let begin = || server.state.start_on_stateid(&args.state, args.seqid);
        self.serve_owner_request(begin, |request, client| {
            let state = server.state.open_confirm(client, &args.state, key)?;
            request.reply.value(&state);
            Ok(())
        })
    }

    pub(super) fn open_downgrade(&mut self, args: OpenDowngrade) -> OpResult {
        let key = self.key(&self.node()?);
        let (access, deny) = shares(self.compound.minor, args.access, args.deny)?;
        let server = self.server;
        let stateid = self.resolve_stateid(&args.state)?;
        self.with_stateid_client(&stateid, args.seqid, |request, client| {
            let state = server
                .state
                .open_downgrade(client, &stateid, key, access, deny)?;
            request.changed(state);
            Ok(())
        })
    }

    pub(super) fn close(&mut self, args: Close) -> OpResult {
        let key = self.key(&self.node()?);
        let server = self.server;
        let stateid = self.resolve_stateid(&args.state)?;
        self.with_stateid_client(&stateid, args.seqid, |request, client| {
            let state = server.state.close(client, &stateid, key)?;
            request.forbid_restart();
            request.changed(state);
            Ok(())
        })
    }
}

/// The attributes in which an exclusive create stores its verifier.
const VERIFIER: Bitmap = Bitmap::of(&[n::TIME_ACCESS_SET, n::TIME_MODIFY_SET]);

/// Returns whether a create stores a verifier.
fn is_exclusive(how: &OpenHow<'_>) -> bool {
    matches!(
        how,
        OpenHow::Create(CreateHow::Exclusive(_) | CreateHow::Exclusive41(_))
    )
}

/// Returns the share access and deny bits of OPEN and OPEN_DOWNGRADE. The delegation wants of v4.1,
/// in the same word, are ignored.
fn shares(minor: u32, access: u32, deny: u32) -> Result<(Share, Share), Status> {
    const WANTS: u32 = 0x3_ff00;
    let access = if minor > 0 { access & !WANTS } else { access };
    if !(1..=3).contains(&access) || deny > 3 {
        return Err(Status::Inval);
    }
    Ok((
        Share::from_bits_truncate(access as u8),
        Share::from_bits_truncate(deny as u8),
    ))
}

fn flags(access: Share) -> OpenFlags {
    let mut flags = OpenFlags::empty();
    flags.set(OpenFlags::READ, access.contains(Share::READ));
    flags.set(OpenFlags::WRITE, access.contains(Share::WRITE));
    flags
}
