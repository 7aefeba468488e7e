//! The macro [`crate::conformance!`], which makes a test of each case.

/// Makes a `#[test]` of each case of [`crate::cases`], in a module per area. `$make` names a
/// function that returns a fresh [`crate::TestSubject`].
#[macro_export]
macro_rules! conformance {
    ($make:ident) => {
        $crate::conformance!(@area $make; lookup:
            the_root_is_its_own_parent
            the_root_stays_the_same
            a_missing_name_is_enoent
            below_a_file_is_enotdir
            a_symlink_is_not_followed
            numbers_tell_nodes_apart
            an_entry_has_the_nodes_attributes
            a_directory_knows_its_parent
            the_parent_follows_a_rename
            the_parent_of_a_file_is_enotdir
            names_differ_by_case
            the_owner_may_do_everything
            statfs_makes_sense
            the_file_system_syncs
        );
        $crate::conformance!(@area $make; create:
            a_new_file_is_as_asked_for
            create_opens_what_is_there
            create_excl_insists_on_a_new_file
            create_trunc_cuts
            create_on_a_directory_is_eisdir
            create_on_a_symlink_is_eloop
            making_in_a_file_is_enotdir
            a_new_file_is_open_whatever_its_mode
            a_new_directory_links_its_parent
            making_what_is_there_is_eexist
            a_file_can_be_made_without_opening
            the_umask_applies
            no_umask_of_the_server_applies
            special_bits_of_new_nodes
            a_symlink_keeps_its_target
            an_empty_symlink_is_enoent
            readlink_of_a_file_is_einval
            pipes_and_sockets_cannot_be_opened
            devices_keep_their_number
            a_tmpfile_can_be_given_a_name
            an_exclusive_tmpfile_gets_no_name
            making_changes_the_directory
        );
        $crate::conformance!(@area $make; unlink:
            what_was_removed_is_gone
            removing_nothing_is_enoent
            unlinking_a_directory_is_eisdir
            rmdir_of_anything_else_is_enotdir
            rmdir_needs_an_empty_directory
            removing_below_a_file_is_enotdir
            links_are_removed_not_their_targets
            removing_changes_directory_and_node
            a_removed_directory_takes_nothing
        );
        $crate::conformance!(@area $make; rename:
            a_renamed_node_stays_itself
            an_open_file_survives_rename
            rename_replaces_a_file
            rename_replaces_a_symlink_itself
            rename_between_links_does_nothing
            renaming_nothing_is_enoent
            kinds_do_not_replace_each_other
            a_directory_replaces_an_empty_one
            no_directory_moves_into_itself
            nothing_replaces_its_own_ancestor
            links_follow_a_moved_directory
            renaming_in_a_file_is_enotdir
            renaming_changes_all_concerned
            noreplace_replaces_nothing
            exchange_swaps
            exchange_makes_no_loop
            whiteout_is_left_behind
            moves_at_a_time_make_no_loop
        );
        $crate::conformance!(@area $make; attributes:
            chmod_sets_permissions
            setattr_answers_the_new_attributes
            open_files_have_the_nodes_attributes
            an_empty_change_changes_nothing
            chown_changes_owner_and_group
            chown_takes_set_id_away
            truncate_cuts_and_extends
            what_was_cut_off_does_not_come_back
            only_files_are_truncated
            ftruncate_needs_a_file_open_for_writing
            a_size_beyond_bounds_is_refused
            times_are_set_exactly
            now_is_the_sources_clock
            times_of_other_kinds_are_set
            every_change_counts
            reading_does_not_count_as_change
            writing_moves_mtime
            reading_moves_atime
            kill_priv_takes_set_id_away
            blocks_follow_contents
        );
        $crate::conformance!(@area $make; data:
            reads_what_was_written
            nothing_is_read_and_written
            overwrites_in_place
            a_gap_reads_as_zeros
            odd_sizes_come_through
            a_payload_may_come_in_pieces
            append_goes_to_the_end
            appends_at_a_time_lose_nothing
            writers_of_different_parts_agree
            all_open_files_see_a_write
            a_file_is_used_as_it_was_opened
            executing_grants_reading
            a_directory_is_no_file
            open_trunc_cuts
            files_sync
            writing_beyond_bounds_is_refused
            agrees_with_an_array_of_bytes
            copies_within_the_file_system
            copies_holes_as_zeros
            copies_within_a_file
            copy_needs_the_right_files
            copy_to_a_foreign_file_is_exdev
            a_clone_changes_on_its_own
        );
        $crate::conformance!(@area $make; holes:
            seek_finds_data_and_holes
            seek_at_the_end_is_enxio
            a_hole_takes_no_space
            extents_cover_a_file
            extents_stop_when_told
            punching_makes_a_hole
            space_can_be_reserved
            ranges_can_be_zeroed
            ranges_can_be_taken_out_and_put_in
            allocation_checks_its_range
            holes_agree_with_an_array_of_bytes
        );
        $crate::conformance!(@area $make; readdir:
            an_empty_directory_has_no_entries
            entries_tell_numbers_and_kinds
            entries_may_come_with_attributes
            cookies_are_unique
            a_listing_goes_on_behind_any_cookie
            pieces_of_any_size_are_complete
            a_full_sink_loses_nothing
            removing_what_was_told_hides_nothing
            removing_here_and_there_hides_nothing
            adding_hides_and_repeats_nothing
            replacing_hides_and_repeats_nothing
            cookies_survive_another_opening
            a_new_start_sees_changes
            renaming_keeps_entries
            listing_a_file_is_enotdir
            listings_at_a_time_see_what_stays
        );
        $crate::conformance!(@area $make; links:
            two_names_one_file
            a_file_lasts_as_long_as_a_name
            linking_a_directory_is_eperm
            linking_over_a_name_is_eexist
            a_symlink_itself_is_linked
            linking_or_moving_to_another_file_system_is_exdev
            linking_changes_the_file
            linking_an_unlinked_file_is_enoent
            many_links
        );
        $crate::conformance!(@area $make; unlinked:
            an_open_file_outlasts_its_name
            a_node_outlasts_its_name
            a_name_used_again_is_another_file
            a_removed_directory_is_left_alone
            a_symlink_outlasts_its_name
        );
        $crate::conformance!(@area $make; xattr:
            what_was_set_is_there
            values_are_replaced
            flags_insist
            a_missing_attribute_is_enodata
            names_and_values_have_bounds
            unknown_namespaces_are_refused
            only_files_and_directories_have_user_attributes
            setting_changes_the_node
            attributes_stay_with_the_node
            none_is_said_plainly
        );
        $crate::conformance!(@area $make; locks:
            locks_conflict
            the_holder_is_told
            a_waiter_gets_the_lock
            a_signal_ends_a_wait_for_a_lock
            flock_does_not_see_byte_ranges
            locks_outlast_names
        );
        $crate::conformance!(@area $make; permissions:
            what_is_made_belongs_to_its_maker
            the_first_class_decides
            reading_and_writing_are_apart
            an_owner_may_where_that_counts
            supplementary_groups_count
            the_super_user_overrides
            searching_and_listing_are_apart
            changing_a_directory_needs_write_permission
            sticky_directories_protect_names
            set_gid_directories_pass_their_group_on
            chmod_is_the_owners
            chmod_sets_set_gid_for_members_only
            chown_is_the_super_users
            times_are_the_owners
            writing_takes_set_id_away
            an_open_file_outlasts_its_permissions
            moving_a_directory_needs_write_permission_on_it
            devices_are_the_super_users
            noatime_is_the_owners
            extended_attributes_are_guarded
            every_directory_on_the_way_is_searched
        );
        $crate::conformance!(@area $make; handles:
            a_handle_leads_back
            handles_tell_nodes_apart
            a_handle_follows_renames
            a_handle_of_nothing_is_estale
            a_forged_handle_is_estale
        );
        $crate::conformance!(@area $make; limits:
            names_of_255_bytes
            names_of_any_bytes
            a_deep_tree
            a_large_directory
            a_huge_sparse_file
        );
    };
    (@area $make:ident; $area:ident: $($case:ident)*) => {
        mod $area {
            $(
                #[test]
                fn $case() {
                    let name = concat!(stringify!($area), "::", stringify!($case));
                    $crate::TestContext::run(name, $crate::cases::$area::$case, super::$make());
                }
            )*
        }
    };
}

#[cfg(test)]
mod tests {
    /// A case that the macro does not list would never run.
    #[test]
    fn every_case_is_listed() {
        let listed = include_str!("suite.rs");
        let mut cases = 0;
        for (area, text) in [
            ("lookup", include_str!("cases/lookup.rs")),
            ("create", include_str!("cases/create.rs")),
            ("unlink", include_str!("cases/unlink.rs")),
            ("rename", include_str!("cases/rename.rs")),
            ("attributes", include_str!("cases/attributes.rs")),
            ("data", include_str!("cases/data.rs")),
            ("holes", include_str!("cases/holes.rs")),
            ("readdir", include_str!("cases/readdir.rs")),
            ("links", include_str!("cases/links.rs")),
            ("unlinked", include_str!("cases/unlinked.rs")),
            ("xattr", include_str!("cases/xattr.rs")),
            ("locks", include_str!("cases/locks.rs")),
            ("permissions", include_str!("cases/permissions.rs")),
            ("handles", include_str!("cases/handles.rs")),
            ("limits", include_str!("cases/limits.rs")),
        ] {
            assert!(listed.contains(&format!("; {area}:")), "{area}");
            for line in text.lines() {
                let Some(rest) = line.strip_prefix("pub fn ") else {
                    continue;
                };
                let name = rest.split('(').next().expect("a name");
                assert!(listed.contains(&format!(" {name}\n")), "{area}::{name}");
                cases += 1;
            }
        }
        assert!(cases > 100, "{cases} cases");
    }
}
