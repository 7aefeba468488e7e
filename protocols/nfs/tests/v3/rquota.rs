//! RQUOTA: the quotas of shares.

use std::sync::Arc;

use layers::disk_quota::DiskLimits;
use layers::{Admission, Bundle, DiskQuota, stack};
use memory::Memory;
use nfs::rquota::{Found, IdArgs, Quota, Status, UserArgs};
use nfs::v3::{CreateHow, Stable};
use vfs::{Export, FileSystem, Time};
use vfs_testkit::clock;

use crate::net::{Host, Net, nothing, whole};

const RQUOTA: u32 = 100_011;

/// Exports `limited` to one host, and `free` without a quota to all.
fn host() -> Host {
    let below: Arc<dyn FileSystem> = Memory::new(clock());
    let limits = DiskLimits {
        bytes: Some(1 << 20),
        inodes: Some(50),
    };
    let limited = DiskQuota::new(&*below, limits).expect("counted");
    let list: Admission = "10.0.0.1(rw,no_root_squash)".parse().expect("a list");
    let limited = stack(stack(below, limited), list);
    let members = [("limited", limited), ("free", Memory::new(clock()) as _)];
    let members = members.map(|(name, fs)| Arc::new(Export::new(name, fs)));
    Host::over(Bundle::new(&members, Time { sec: 1, nsec: 0 }).expect("a tree"))
}

fn of_user(net: &Net, path: &[u8]) -> Found {
    let args = UserArgs { path, user: 1000 };
    whole(net.call((RQUOTA, 1, 1), &args).expect("results"))
}

#[test]
fn the_quota_of_a_share_is_that_of_its_users_and_groups() {
    let net = Net::from(&host(), "10.0.0.1");
    let root = net.mounted(b"/limited").expect("mounted");
    let made = net.create(root, b"f", CreateHow::Guarded(nothing()));
    let file = made.expect("made").object.expect("a handle");
    net.write(file, 0, &[7; 16 << 10], Stable::FileSync)
        .expect("written");
    let expected = Found::Quota(Quota {
        block_size: 1024,
        active: true,
        block_limit: 1024,
        block_soft_limit: 0,
        blocks: 16,
        file_limit: 50,
        file_soft_limit: 0,
        files: 2,
        block_time_left: 0,
        file_time_left: 0,
    });
    assert_eq!(of_user(&net, b"/limited"), expected);
    for (procedure, kind) in [(1, 0), (2, 1)] {
        let args = IdArgs {
            path: b"/limited",
            kind,
            id: 7,
        };
        let found = whole(net.call((RQUOTA, 2, procedure), &args).expect("results"));
        assert_eq!(expected, found);
    }
}

#[test]
fn shares_without_a_quota_and_of_others_have_none() {
    let host = host();
    let net = Net::from(&host, "10.0.0.1");
    assert_eq!(of_user(&net, b"/free"), Found::None(Status::NoQuota));
    assert_eq!(of_user(&net, b"/"), Found::None(Status::NoQuota));
    assert_eq!(of_user(&net, b"/missing"), Found::None(Status::Eperm));
    let stranger = Net::from(&host, "10.0.0.9");
    assert_eq!(of_user(&stranger, b"/limited"), Found::None(Status::Eperm));
    let set: Found = whole(net.call((RQUOTA, 2, 3), &()).expect("results"));
    assert_eq!(set, Found::None(Status::Eperm));
    let other = net.call((RQUOTA, 3, 1), &());
    assert!(other.is_err(), "version 3");
}
