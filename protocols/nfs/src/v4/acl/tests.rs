//! Round trips, and ACLs that are rejected.

use proptest::prelude::*;

use super::*;

fn entry(whose: AclSubject, may: u32) -> AclEntry {
    AclEntry {
        subject: whose,
        permissions: Access::from_bits_truncate(may),
    }
}

fn only(access: Acl) -> NodeAcls {
    NodeAcls {
        access,
        default: None,
    }
}

fn ace(kind: u32, flag: u32, mask: u32, who: Who<'static>) -> Ace<'static> {
    Ace {
        kind,
        flag,
        mask,
        who,
    }
}

const FILE_READ: u32 = mask::READ | mask::ALWAYS;
const FILE_WRITE: u32 = mask::WRITE | mask::ALWAYS;

#[test]
fn a_mode_is_denied_only_what_others_may() {
    let aces = |mode| only(Acl::of_mode(mode)).to_v4(false);
    let owner = mask::ALWAYS | mask::OWNER;
    let want = [
        ace(ALLOW, 0, owner | mask::READ | mask::WRITE, OWNER),
        ace(ALLOW, 0, FILE_READ, GROUP),
        ace(ALLOW, 0, mask::ALWAYS, EVERYONE),
    ];
    assert_eq!(aces(0o640), want);
    let want = [
        ace(DENY, 0, mask::READ, OWNER),
        ace(ALLOW, 0, owner, OWNER),
        ace(ALLOW, 0, mask::ALWAYS, GROUP),
        ace(DENY, 0, mask::READ, GROUP),
        ace(ALLOW, 0, FILE_READ, EVERYONE),
    ];
    assert_eq!(aces(0o004), want);
}

#[test]
fn a_mask_is_taken_off_before_it_is_told() {
    let acl = Acl(vec![
        entry(AclSubject::Owner, 7),
        entry(AclSubject::User(7), 6),
        entry(AclSubject::OwningGroup, 6),
        entry(AclSubject::Group(8), 2),
        entry(AclSubject::Mask, 4),
        entry(AclSubject::Others, 0),
    ]);
    let aces = only(acl).to_v4(false);
    let allowed = |who| aces.iter().find(|ace| ace.who == who).map(|ace| ace.mask);
    assert_eq!(allowed(Who::Number(7)), Some(FILE_READ));
    assert_eq!(allowed(GROUP), Some(FILE_READ));
    let group = aces.iter().find(|ace| ace.flag == flag::GROUP);
    assert_eq!(group.map(|ace| ace.mask), Some(mask::ALWAYS));
}

#[test]
fn what_is_denied_first_is_not_allowed_later() {
    let aces = [
        ace(DENY, 0, mask::WRITE, Who::Number(7)),
        ace(ALLOW, 0, FILE_READ | FILE_WRITE, EVERYONE),
        ace(ALLOW, 0, FILE_WRITE, Who::Number(7)),
    ];
    let acls = NodeAcls::from_v4(&aces, false).expect("an ACL");
    let want = [
        // User 7 may be the owner.
        entry(AclSubject::Owner, 4),
        entry(AclSubject::User(7), 4),
        entry(AclSubject::OwningGroup, 6),
        entry(AclSubject::Mask, 6),
        entry(AclSubject::Others, 6),
    ];
    assert_eq!(acls, only(Acl(want.into())));
}

#[test]
fn half_of_what_writing_is_allows_no_writing() {
    let aces = [ace(ALLOW, 0, 0x2, EVERYONE)];
    let acls = NodeAcls::from_v4(&aces, false).expect("an ACL");
    assert_eq!(acls, only(Acl::of_mode(0)));
    let aces = [ace(ALLOW, 0, mask::WRITE, EVERYONE)];
    assert_eq!(
        NodeAcls::from_v4(&aces, true).map(|acls| acls.access),
        Ok(Acl::of_mode(0)),
        "a directory's is its entries' removal too"
    );
}

#[test]
fn what_a_directory_hands_on_is_completed_from_its_own() {
    let handed = flag::FILE_INHERIT | flag::DIRECTORY_INHERIT | flag::INHERIT_ONLY;
    let aces = [
        ace(ALLOW, 0, FILE_READ, OWNER),
        ace(ALLOW, 0, FILE_READ, GROUP),
        ace(ALLOW, handed, FILE_READ, Who::Number(7)),
    ];
    let acls = NodeAcls::from_v4(&aces, true).expect("ACLs");
    assert_eq!(acls.access, Acl::of_mode(0o440));
    let want = [
        entry(AclSubject::Owner, 4),
        entry(AclSubject::User(7), 4),
        entry(AclSubject::OwningGroup, 4),
        entry(AclSubject::Mask, 4),
        entry(AclSubject::Others, 0),
    ];
    assert_eq!(acls.default, Some(Acl(want.into())));
}

#[test]
fn what_posix_has_no_idea_of_is_refused() {
    for (ace, directory, want) in [
        (ace(2, 0, 1, OWNER), false, Status::Attrnotsupp),
        (ace(ALLOW, 4, 1, OWNER), true, Status::Attrnotsupp),
        (ace(ALLOW, 1, 1, OWNER), false, Status::Attrnotsupp),
        (
            ace(ALLOW, 0, 1, Who::Name(b"fred")),
            false,
            Status::Badowner,
        ),
    ] {
        assert_eq!(NodeAcls::from_v4(&[ace], directory), Err(want));
    }
    let many = vec![ace(ALLOW, 0, 1, OWNER); MAX_ENTRIES + 1];
    assert_eq!(NodeAcls::from_v4(&many, false), Err(Status::Fbig));
}

/// Generates ACLs whose mask removes no permissions.
fn acls() -> impl Strategy<Value = Acl> {
    let named = || prop::collection::btree_map(0..6u32, 0..8u32, 0..4);
    (0..8u32, named(), 0..8u32, named(), 0..8u32).prop_map(
        |(owner, users, group, groups, others)| {
            let mut entries = vec![entry(AclSubject::Owner, owner)];
            entries.extend(
                users
                    .iter()
                    .map(|(&id, &may)| entry(AclSubject::User(id), may)),
            );
            entries.push(entry(AclSubject::OwningGroup, group));
            entries.extend(
                groups
                    .iter()
                    .map(|(&id, &may)| entry(AclSubject::Group(id), may)),
            );
            if !users.is_empty() || !groups.is_empty() {
                let mask = users.values().chain(groups.values());
                entries.push(entry(
                    AclSubject::Mask,
                    mask.fold(group, |all, may| all | may),
                ));
            }
            entries.push(entry(AclSubject::Others, others));
            Acl(entries)
        },
    )
}

proptest! {
    #[test]
    fn a_posix_acl_comes_back_as_it_went(access in acls(), default in acls(), directory: bool) {
        let default = directory.then_some(default);
        let acls = NodeAcls { access, default };
        prop_assert_eq!(NodeAcls::from_v4(&acls.to_v4(directory), directory), Ok(acls));
    }
}
