//! The [`Layer`] trait, and the table of operations that all macros here expand.

use std::ops::Deref;
use std::sync::Arc;

use vfs::{File, FileSystem, Node, NodeId};

/// An open file below a layer. Dereferences to the file.
#[derive(Clone, Copy)]
pub struct Opened<'a> {
    /// The file.
    pub file: &'a dyn File,
    /// The file's node.
    pub node: &'a dyn Node,
}

impl<'a> Deref for Opened<'a> {
    type Target = dyn File + 'a;

    fn deref(&self) -> &Self::Target {
        self.file
    }
}

/// The object below that an operation is called on.
pub trait Below {
    /// Returns the number of the node, 0 for the file system.
    fn node(&self) -> NodeId;
}

impl Below for &(dyn FileSystem + '_) {
    fn node(&self) -> NodeId {
        0
    }
}

impl Below for &(dyn Node + '_) {
    fn node(&self) -> NodeId {
        self.id()
    }
}

impl Below for Opened<'_> {
    fn node(&self) -> NodeId {
        self.node.id()
    }
}

/// A method of [`Layer`] about the tree as a whole, not an operation.
#[doc(hidden)]
#[macro_export]
macro_rules! layer_place {
    ([declare] capabilities) => {
        /// Returns the capabilities of the layer over a file system that has `inner`.
        fn capabilities(&self, inner: vfs::Capabilities) -> vfs::Capabilities;
    };
    ([declare] id) => {
        /// Returns the number under which the node numbered `below` is known above this layer.
        fn id(&self, below: vfs::NodeId) -> vfs::NodeId;
    };
    ([declare] above) => {
        /// Returns the parent of the directory `inner` if that parent is not part of the tree below
        /// this layer. It is returned as it is, not wrapped.
        fn above(&self, inner: &dyn vfs::Node, cx: &vfs::Cx<'_>)
        -> vfs::Result<Option<vfs::Entry>>;
    };
    ([] capabilities) => {
        fn capabilities(&self, inner: vfs::Capabilities) -> vfs::Capabilities {
            inner
        }
    };
    ([] id) => {
        #[inline]
        fn id(&self, below: vfs::NodeId) -> vfs::NodeId {
            below
        }
    };
    ([] above) => {
        #[inline]
        fn above(&self, _: &dyn vfs::Node, _: &vfs::Cx<'_>) -> vfs::Result<Option<vfs::Entry>> {
            Ok(None)
        }
    };
    ([shared] capabilities) => {
        fn capabilities(&self, inner: vfs::Capabilities) -> vfs::Capabilities {
            (**self).capabilities(inner)
        }
    };
    ([shared] id) => {
        #[inline]
        fn id(&self, below: vfs::NodeId) -> vfs::NodeId {
            (**self).id(below)
        }
    };
    ([shared] above) => {
        fn above(
            &self,
            inner: &dyn vfs::Node,
            cx: &vfs::Cx<'_>,
        ) -> vfs::Result<Option<vfs::Entry>> {
            (**self).above(inner, cx)
        }
    };
}

/// The table: for each operation its name in [`vfs::Op`], its name in [`Layer`], the type it is
/// called on, the method there, its arguments and value. Passes the row of one operation to
/// [`layer_method!`].
#[doc(hidden)]
#[macro_export]
macro_rules! operation {
    ($how:tt capabilities) => { $crate::layer_place! { $how capabilities } };
    ($how:tt id) => { $crate::layer_place! { $how id } };
    ($how:tt above) => { $crate::layer_place! { $how above } };

    ($how:tt root) => { $crate::layer_method! { $how Root root [&dyn vfs::FileSystem] root() -> std::sync::Arc<dyn vfs::Node> } };
    ($how:tt resolve) => { $crate::layer_method! { $how Resolve resolve [&dyn vfs::FileSystem] resolve(handle: &vfs::Handle) -> std::sync::Arc<dyn vfs::Node> } };
    ($how:tt sync) => { $crate::layer_method! { $how Sync sync [&dyn vfs::FileSystem] sync() -> () } };

    ($how:tt handle) => { $crate::layer_method! { $how Handle handle [&dyn vfs::Node] handle() -> vfs::Handle } };
    ($how:tt attr) => { $crate::layer_method! { $how Attr attr [&dyn vfs::Node] attr(want: vfs::AttrMask) -> vfs::Attr } };
    ($how:tt setattr) => { $crate::layer_method! { $how Setattr setattr [&dyn vfs::Node] setattr(set: &vfs::SetAttr) -> vfs::Attr } };
    ($how:tt access) => { $crate::layer_method! { $how Access access [&dyn vfs::Node] access(want: vfs::Access) -> vfs::Access } };
    ($how:tt statfs) => { $crate::layer_method! { $how Statfs statfs [&dyn vfs::Node] statfs() -> vfs::StatFs } };
    ($how:tt open) => { $crate::layer_method! { $how Open open [&dyn vfs::Node] open(flags: vfs::OpenFlags) -> std::sync::Arc<dyn vfs::File> } };
    ($how:tt readlink) => { $crate::layer_method! { $how Readlink readlink [&dyn vfs::Node] readlink() -> Vec<u8> } };
    ($how:tt lookup) => { $crate::layer_method! { $how Lookup lookup [&dyn vfs::Node] lookup(name: vfs::Name<'_>) -> vfs::Entry } };
    ($how:tt parent) => { $crate::layer_method! { $how Parent parent [&dyn vfs::Node] parent() -> vfs::Entry } };
    ($how:tt create) => { $crate::layer_method! { $how Create create [&dyn vfs::Node] create(name: vfs::Name<'_>, flags: vfs::OpenFlags, mode: vfs::Mode) -> (vfs::Entry, std::sync::Arc<dyn vfs::File>) } };
    ($how:tt make) => { $crate::layer_method! { $how Make make [&dyn vfs::Node] make(name: vfs::Name<'_>, what: vfs::NewNode<'_>, mode: vfs::Mode) -> vfs::Entry } };
    ($how:tt tmpfile) => { $crate::layer_method! { $how Tmpfile tmpfile [&dyn vfs::Node] tmpfile(flags: vfs::OpenFlags, mode: vfs::Mode) -> (vfs::Entry, std::sync::Arc<dyn vfs::File>) } };
    ($how:tt link) => { $crate::layer_method! { $how Link link [&dyn vfs::Node] link(name: vfs::Name<'_>, target: &dyn vfs::Node) -> vfs::Entry } };
    ($how:tt unlink) => { $crate::layer_method! { $how Unlink unlink [&dyn vfs::Node] unlink(name: vfs::Name<'_>, dir: bool) -> () } };
    ($how:tt rename) => { $crate::layer_method! { $how Rename rename [&dyn vfs::Node] rename(name: vfs::Name<'_>, to: &dyn vfs::Node, to_name: vfs::Name<'_>, flags: vfs::RenameFlags) -> () } };
    ($how:tt xattr) => { $crate::layer_method! { $how Xattr xattr [&dyn vfs::Node] xattr(name: &[u8]) -> Vec<u8> } };
    ($how:tt xattrs) => { $crate::layer_method! { $how Xattrs xattrs [&dyn vfs::Node] xattrs() -> Vec<u8> } };
    ($how:tt set_xattr) => { $crate::layer_method! { $how SetXattr set_xattr [&dyn vfs::Node] set_xattr(name: &[u8], value: &[u8], flags: vfs::XattrFlags) -> () } };
    ($how:tt remove_xattr) => { $crate::layer_method! { $how RemoveXattr remove_xattr [&dyn vfs::Node] remove_xattr(name: &[u8]) -> () } };
    ($how:tt host_lock) => { $crate::layer_method! { $how HostLock host_lock [&dyn vfs::Node] host_lock(range: vfs::lock::LockRange, state: vfs::lock::HostLock) -> () } };
    ($how:tt host_lock_holder) => { $crate::layer_method! { $how HostLockHolder host_lock_holder [&dyn vfs::Node] host_lock_holder(range: vfs::lock::LockRange, kind: vfs::lock::LockKind) -> Option<vfs::lock::ForeignLock> } };

    ($how:tt file_attr) => { $crate::layer_method! { $how FileAttr file_attr [layers::Opened<'_>] attr(want: vfs::AttrMask) -> vfs::Attr } };
    ($how:tt file_setattr) => { $crate::layer_method! { $how FileSetattr file_setattr [layers::Opened<'_>] setattr(set: &vfs::SetAttr) -> vfs::Attr } };
    ($how:tt read) => { $crate::layer_method! { $how Read read [layers::Opened<'_>] read(offset: u64, len: usize, sink: &mut dyn vfs::Sink) -> usize } };
    ($how:tt write) => { $crate::layer_method! { $how Write write [layers::Opened<'_>] write(offset: u64, data: &mut dyn vfs::Payload) -> usize } };
    ($how:tt readdir) => { $crate::layer_method! { $how Readdir readdir [layers::Opened<'_>] readdir(cookie: u64, plus: vfs::ReaddirMode, sink: &mut dyn vfs::DirSink) -> () } };
    ($how:tt fsync) => { $crate::layer_method! { $how Fsync fsync [layers::Opened<'_>] fsync(datasync: bool) -> () } };
    ($how:tt flush) => { $crate::layer_method! { $how Flush flush [layers::Opened<'_>] flush() -> () } };
    ($how:tt allocate) => { $crate::layer_method! { $how Allocate allocate [layers::Opened<'_>] allocate(how: vfs::AllocateMode, offset: u64, len: u64) -> () } };
    ($how:tt seek) => { $crate::layer_method! { $how Seek seek [layers::Opened<'_>] seek(offset: u64, what: vfs::Whence) -> u64 } };
    ($how:tt extents) => { $crate::layer_method! { $how Extents extents [layers::Opened<'_>] extents(offset: u64, len: u64, each: &mut dyn FnMut(vfs::Extent) -> bool) -> () } };
    ($how:tt copy) => { $crate::layer_method! { $how Copy copy [layers::Opened<'_>] copy(offset: u64, to: &dyn vfs::File, to_offset: u64, len: u64, how: vfs::CopyMode) -> u64 } };
    ($how:tt lease) => { $crate::layer_method! { $how Lease lease [layers::Opened<'_>] lease(kind: vfs::LeaseKind, broken: &vfs::BreakCallback) -> Box<dyn vfs::Lease> } };
}

/// A method of [`Layer`], from a row of the table.
#[doc(hidden)]
#[macro_export]
macro_rules! layer_method {
    // Declares it.
    ([declare] $op:ident $name:ident [$inner:ty] $method:ident($($arg:ident: $ty:ty),*) -> $value:ty) => {
        #[doc = concat!("What becomes of [`vfs::Op::", stringify!($op), "`].")]
        fn $name(&self, inner: $inner, cx: &vfs::Cx<'_>, $($arg: $ty),*) -> vfs::Result<$value>;
    };
    // Calls the object below.
    ([] $op:ident $name:ident [$inner:ty] $method:ident($($arg:ident: $ty:ty),*) -> $value:ty) => {
        #[inline]
        fn $name(&self, inner: $inner, cx: &vfs::Cx<'_>, $($arg: $ty),*) -> vfs::Result<$value> {
            inner.$method(cx, $($arg),*)
        }
    };
    // Calls the layer's method `with`, which decides whether and when to call the object below.
    ([with $with:ident] $op:ident $name:ident [$inner:ty] $method:ident($($arg:ident: $ty:ty),*) -> $value:ty) => {
        fn $name(&self, inner: $inner, cx: &vfs::Cx<'_>, $($arg: $ty),*) -> vfs::Result<$value> {
            let node = $crate::Below::node(&inner);
            self.$with(vfs::Op::$op, node, cx, || inner.$method(cx, $($arg),*))
        }
    };
    // Calls the object below as the caller that the layer's method `caller` returns.
    ([by $caller:ident] $op:ident $name:ident [$inner:ty] $method:ident($($arg:ident: $ty:ty),*) -> $value:ty) => {
        fn $name(&self, inner: $inner, cx: &vfs::Cx<'_>, $($arg: $ty),*) -> vfs::Result<$value> {
            let caller = self.$caller(cx);
            inner.$method(&cx.on_behalf_of(&caller), $($arg),*)
        }
    };
    // Calls the layer's method `show`, which calls the object below and changes the value.
    ([showing $show:ident] $op:ident $name:ident [$inner:ty] $method:ident($($arg:ident: $ty:ty),*) -> $value:ty) => {
        fn $name(&self, inner: $inner, cx: &vfs::Cx<'_>, $($arg: $ty),*) -> vfs::Result<$value> {
            self.$show(cx, |cx| inner.$method(cx, $($arg),*))
        }
    };
    // Calls the layer that the layer's method `choose` returns, as the caller that it returns.
    ([to $choose:ident] $op:ident $name:ident [$inner:ty] $method:ident($($arg:ident: $ty:ty),*) -> $value:ty) => {
        fn $name(&self, inner: $inner, cx: &vfs::Cx<'_>, $($arg: $ty),*) -> vfs::Result<$value> {
            let (layer, caller) = self.$choose(cx)?;
            layer.$name(inner, &cx.on_behalf_of(&caller), $($arg),*)
        }
    };
    // A wrapper's method: calls the layer with the object below.
    ([layered] $op:ident $name:ident [$inner:ty] $method:ident($($arg:ident: $ty:ty),*) -> $value:ty) => {
        fn $method(&self, cx: &vfs::Cx<'_>, $($arg: $ty),*) -> vfs::Result<$value> {
            self.layer.$name(self.below(), cx, $($arg),*)
        }
    };
    // A wrapper's method: calls the wrapped object.
    ([wrapped] $op:ident $name:ident [$inner:ty] $method:ident($($arg:ident: $ty:ty),*) -> $value:ty) => {
        fn $method(&self, cx: &vfs::Cx<'_>, $($arg: $ty),*) -> vfs::Result<$value> {
            self.inner.$method(cx, $($arg),*)
        }
    };
    // Calls the layer in the `Arc`.
    ([shared] $op:ident $name:ident [$inner:ty] $method:ident($($arg:ident: $ty:ty),*) -> $value:ty) => {
        #[inline]
        fn $name(&self, inner: $inner, cx: &vfs::Cx<'_>, $($arg: $ty),*) -> vfs::Result<$value> {
            (**self).$name(inner, cx, $($arg),*)
        }
    };
}

/// Writes methods of a [`Layer`] that leave their operation unchanged:
///
/// - `forward! { lookup attr … }`: calls the object below; `id` returns the number below, `above`
///   returns `None`, `capabilities` returns those below.
/// - `forward! { by WHO: … }`: calls the object below as the caller that `self.WHO(cx)` returns.
/// - `forward! { to CHOOSE: … }`: calls the layer that `self.CHOOSE(cx)` returns, as the caller
///   that it returns; its error is the operation's.
/// - `forward! { showing SHOW: … }`: `self.SHOW(cx, run)` calls `run(cx)`, which calls the object
///   below, and returns another value of the same type, for instance with [`crate::WithAttr`].
/// - `forward! { with RUN: … }`: `self.RUN(op, node, cx, run)` decides whether and when to call
///   `run()`, which calls the object below.
///
/// `all` in place of the names stands for every operation, `all but lookup attr …` for all others:
/// a layer that treats operations alike has no list that may lack one. A layer whose rules depend
/// on the operation names each, so that it does not compile until a new one has a rule.
///
/// Two more forms write methods of [`vfs::FileSystem`], [`vfs::Node`] or [`vfs::File`], for a type
/// that wraps another object of its kind:
/// - `forward! { wrapped: … }`: calls `self.inner`.
/// - `forward! { layered: … }`: calls the layer `self.layer` with the object that `self.below()`
///   returns.
#[macro_export]
macro_rules! forward {
    (with $with:ident: $($ops:ident)*) => { $crate::operations! { [with $with] $($ops)* } };
    (by $caller:ident: $($ops:ident)*) => { $crate::operations! { [by $caller] $($ops)* } };
    (showing $show:ident: $($ops:ident)*) => { $crate::operations! { [showing $show] $($ops)* } };
    (to $choose:ident: $($ops:ident)*) => { $crate::operations! { [to $choose] $($ops)* } };
    (layered: $($ops:ident)*) => { $crate::operations! { [layered] $($ops)* } };
    (wrapped: $($ops:ident)*) => { $crate::operations! { [wrapped] $($ops)* } };
    (shared: $($ops:ident)*) => { $crate::operations! { [shared] $($ops)* } };
    (declare: $($ops:ident)*) => { $crate::operations! { [declare] $($ops)* } };
    ($($ops:ident)*) => { $crate::operations! { [] $($ops)* } };
}

/// The methods of [`forward!`], written in one of its forms.
#[doc(hidden)]
#[macro_export]
macro_rules! operations {
    ($how:tt all) => { $crate::operations! { $how all but } };
    ($how:tt all but $($named:ident)*) => {
        $crate::operations_but! { $how [$($named)*]
            root resolve sync
            handle attr setattr access statfs open readlink lookup parent create make tmpfile link
            unlink rename xattr xattrs set_xattr remove_xattr host_lock host_lock_holder
            file_attr file_setattr read write readdir fsync flush allocate seek extents copy lease
        }
    };
    ($how:tt $($op:ident)*) => { $($crate::operation! { $how $op })* };
}

/// The methods of some operations but those in a list.
#[doc(hidden)]
#[macro_export]
macro_rules! operations_but {
    ($how:tt $named:tt $($op:ident)*) => { $($crate::operation_unless! { $how $named $op })* };
}

/// The method of an operation that is not in a list.
#[doc(hidden)]
#[macro_export]
macro_rules! operation_unless {
    ($how:tt [] $op:ident) => { $crate::operation! { $how $op } };
    ($how:tt [root $($rest:ident)*] root) => {};
    ($how:tt [resolve $($rest:ident)*] resolve) => {};
    ($how:tt [sync $($rest:ident)*] sync) => {};
    ($how:tt [handle $($rest:ident)*] handle) => {};
    ($how:tt [attr $($rest:ident)*] attr) => {};
    ($how:tt [setattr $($rest:ident)*] setattr) => {};
    ($how:tt [access $($rest:ident)*] access) => {};
    ($how:tt [statfs $($rest:ident)*] statfs) => {};
    ($how:tt [open $($rest:ident)*] open) => {};
    ($how:tt [readlink $($rest:ident)*] readlink) => {};
    ($how:tt [lookup $($rest:ident)*] lookup) => {};
    ($how:tt [parent $($rest:ident)*] parent) => {};
    ($how:tt [create $($rest:ident)*] create) => {};
    ($how:tt [make $($rest:ident)*] make) => {};
    ($how:tt [tmpfile $($rest:ident)*] tmpfile) => {};
    ($how:tt [link $($rest:ident)*] link) => {};
    ($how:tt [unlink $($rest:ident)*] unlink) => {};
    ($how:tt [rename $($rest:ident)*] rename) => {};
    ($how:tt [xattr $($rest:ident)*] xattr) => {};
    ($how:tt [xattrs $($rest:ident)*] xattrs) => {};
    ($how:tt [set_xattr $($rest:ident)*] set_xattr) => {};
    ($how:tt [remove_xattr $($rest:ident)*] remove_xattr) => {};
    ($how:tt [host_lock $($rest:ident)*] host_lock) => {};
    ($how:tt [host_lock_holder $($rest:ident)*] host_lock_holder) => {};
    ($how:tt [file_attr $($rest:ident)*] file_attr) => {};
    ($how:tt [file_setattr $($rest:ident)*] file_setattr) => {};
    ($how:tt [read $($rest:ident)*] read) => {};
    ($how:tt [write $($rest:ident)*] write) => {};
    ($how:tt [readdir $($rest:ident)*] readdir) => {};
    ($how:tt [fsync $($rest:ident)*] fsync) => {};
    ($how:tt [flush $($rest:ident)*] flush) => {};
    ($how:tt [allocate $($rest:ident)*] allocate) => {};
    ($how:tt [seek $($rest:ident)*] seek) => {};
    ($how:tt [extents $($rest:ident)*] extents) => {};
    ($how:tt [copy $($rest:ident)*] copy) => {};
    ($how:tt [lease $($rest:ident)*] lease) => {};
    ($how:tt [$other:ident $($rest:ident)*] $op:ident) => {
        $crate::operation_unless! { $how [$($rest)*] $op }
    };
}

/// A layer: one method for each operation. `inner` is the object below; nodes and files among the
/// arguments are those below, too, and [`crate::stack()`] wraps the results.
///
/// Every method may be called concurrently from many threads.
#[allow(
    clippy::too_many_arguments,
    reason = "as many as copy_file_range(2), and the object"
)]
pub trait Layer: Send + Sync + 'static {
    /// Returns whether the layer neither changes nor observes [`vfs::Op::Read`] and
    /// [`vfs::Op::Write`], and leaves the flags of [`vfs::Op::Open`] unchanged: then the host may
    /// bypass the layer for them ([`vfs::File::backing`]).
    fn allows_passthrough(&self) -> bool {
        false
    }

    forward! { declare: capabilities id above }

    forward! { declare: all }
}

/// A layer with other owners.
impl<L: Layer + ?Sized> Layer for Arc<L> {
    fn allows_passthrough(&self) -> bool {
        (**self).allows_passthrough()
    }

    forward! { shared: capabilities id above }

    forward! { shared: all }
}
