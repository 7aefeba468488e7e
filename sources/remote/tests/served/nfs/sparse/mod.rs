//! A conformance suite for READ_PLUS and SEEK (RFC 7862 sections 15.10, 15.11), which no other test
//! suite has: each reply is parsed from the wire and compared with the content of the file.
//!
//! It creates its files through the server under test, so it runs over any server:
//! `BARGE_SPARSE_SERVER=nfs://HOST[:PORT]/PATH` names one, `BARGE_SPARSE_HOLES=no` says that it
//! need not report holes. Behaviour that the RFC leaves to the server (sending zeros for a hole,
//! returning less than requested) is checked only for barge.

mod asker;
mod disk;
mod file;
mod layouts;
mod race;
mod seek;
mod servers;

/// One test per case, over the server `$subject`, if it is available.
macro_rules! sparse {
    ($subject:expr; $($area:ident: $($case:ident)*;)*) => {
        $($(
            #[test]
            fn $case() {
                if let Some(subject) = $subject {
                    super::$area::$case(&subject);
                }
            }
        )*)*
    };
    ($subject:expr) => {
        sparse! { $subject;
            layouts:
                rfc7862_15_10_every_layout_reads_as_written
                rfc7862_15_10_pieces_are_clipped_to_what_was_asked_for
                rfc7862_15_10_holes_at_the_end_and_in_reserved_space
                rfc7862_15_10_a_file_of_a_tebibyte
                rfc7862_15_10_short_files_and_their_ends
                rfc7862_15_10_any_stateid_that_reads
                rfc7862_15_10_more_than_a_session_carries
                any_layout_reads_as_written
            ;
            race:
                no_byte_is_wrong_while_others_write_and_punch
                no_hole_is_told_where_others_append
            ;
            seek:
                rfc7862_15_11_any_stateid_that_reads
                rfc7862_15_11_what_is_neither_data_nor_hole_is_refused
            ;
        }
        seek!($subject);
    };
}

/// The cases of SEEK alone.
macro_rules! seek {
    ($subject:expr) => {
        sparse! { $subject;
            seek:
                rfc7862_15_11_data_and_holes_at_each_boundary
                rfc7862_15_11_behind_the_end_is_nxio
                rfc7862_15_11_the_end_is_a_hole
                rfc7862_15_11_seek_and_read_agree
            ;
        }
    };
}

mod memory {
    sparse!(super::servers::memory());
}

mod tmpfs {
    sparse!(super::servers::directory("/dev/shm".as_ref()));
}

mod ext4 {
    sparse!(super::servers::disk("ext4"));
}

mod xfs {
    sparse!(super::servers::disk("xfs"));
}

mod btrfs {
    sparse!(super::servers::disk("btrfs"));
}

mod named {
    sparse!(super::servers::named());
}

/// Ganesha 4.3 returns no data in READ_PLUS, and offset 0 in SEEK without an open, so only SEEK
/// with opens is tested.
mod ganesha {
    seek!(super::servers::ganesha());
}
