//! The one list of cases. Everything else (the registry, the tests of a store) expands it.

/// Hands the list of cases to another macro of this crate.
#[doc(hidden)]
#[macro_export]
macro_rules! __cases {
    ($then:ident) => {
        $crate::$then! {
            a_clock {
                [5] Ci lease_lasts_as_long_as_granted
                    "whole and broken ttls: nobody else gets in before, and somebody does right after";
                [5] Ci ttl_out_of_range_is_refused_or_kept
                    "a ttl that the store cannot keep is refused, never cut silently";
                [1, 2, 4] Ci remaining_is_what_is_left
                    "what a denied try and an onlooker are told is what the store will keep";
            }
            b_lease {
                [11] Ci the_holders_ttl_counts
                    "a taker with a shorter ttl of its own does not get in earlier";
                [15] Ci a_lease_long_expired_is_taken_at_once
                    "the first try after an expiry is granted";
                [10] Ci validity_counts_from_the_send
                    "what a slow answer took is taken off the time that a guard has left";
            }
            c_renewal {
                [13] Ci renewal_restarts_the_countdown
                    "a lease renewed in time outlives its first ttl";
                [21] Ci expired_is_never_revived
                    "after the expiry a renewal answers gone, also when nobody else came";
                [20, 34] Ci taken_over_is_gone_and_untouched
                    "renewal and release of an old term leave the new one as it was";
                [20] Ci nonce_and_token_must_both_match
                    "a renewal or release with a foreign nonce or another token does nothing";
                [20] Ci stolen_is_gone
                    "an entry whose owner was changed by hand is gone for the old holder";
                [21, 46, 63] Ci wiped_is_gone
                    "an entry deleted by hand is gone, and can be taken with a larger token";
                [] Ci batch_answers_each_lease_in_order
                    "a batch answers each lease by itself and in order, live ones beside gone ones";
                [] Ci a_blocked_entry_delays_no_other
                    "while one entry is locked the others of the batch are renewed";
                [16, 25] Ci hanging_renewals_lose_in_time
                    "renewals that never answer: lost at the deadline, another leads after it, then this one again";
                [17, 125] Ci failing_renewals_lose_in_time
                    "renewals that fail: lost at the deadline with the error; it leads again after the repair";
                [18, 19] Ci one_bad_renewal_loses_nothing
                    "one renewal that fails, or whose answer is lost, ends no term";
                [26] Ci work_that_ends_frees_the_lease
                    "work that fails or ends gives the lease to another at once";
                [28] Ci nothing_is_renewed_afterwards
                    "after a release or a drop no renewal is sent";
            }
            d_pause {
                [14, 32] Ci one_leader_under_faults
                    "three candidates over stores that fail, lose answers and are slow: the history is right";
                [32] Ci a_stopped_process_finds_its_term_over
                    "a process stopped past its ttl: another leads, its first check is false, its release frees nothing";
            }
            e_release {
                [34, 40] Ci released_once_then_not_held
                    "the first release frees, the second finds nothing";
                [40] Ci release_after_expiry_revives_nothing
                    "a release after the expiry does not extend the lease, and never touches the next";
                [] Ci withdraw_leaves_nothing
                    "a withdrawn claim holds nothing, whether it was granted or not, and harms nobody";
                [35, 121] Ci a_failed_release_can_be_repeated
                    "a release that could not be sent says so; the next one frees; nothing is renewed between";
                [37, 38] Ci work_ends_before_the_lease_does
                    "a candidate that stops waits for its work, then hands over at once";
                [38, 39] Ci a_killed_process_blocks_for_its_ttl_only
                    "a process killed at any moment of taking and releasing: the name is free within the ttl";
                [41, 95] Ci sweep_removes_the_unused_only
                    "a sweep removes old entries, never a held one, and tokens go on above";
            }
            f_sessions {
                [46] Ci a_wiped_leader_is_told
                    "a leader whose entry was deleted by hand is lost at its next renewal";
            }
            g_cancellation {
                [55] Ci dropped_calls_leave_the_store_usable
                    "each method dropped after each poll: the next call works, and what was taken can be withdrawn";
                [55, 58] Ci dropped_acquire_leaves_nothing
                    "acquire dropped after each poll, beside a holder and on a free name: nothing stays";
                [59] Ci waiting_is_exact
                    "a limited wait is as long as asked and ends without an error";
            }
            h_restart {
                [76] Ci a_short_restart_costs_no_term
                    "a server that is away for a second: the same term with the same token goes on";
                [16, 25, 76] Ci a_long_outage_ends_the_term
                    "a server that is away for two ttls: lost by the deadline, one leader after it is back";
            }
            i_names {
                [80] Ci byte_for_byte
                    "names that differ in case, accent, space or normal form are different names";
                [81] Ci long_names_do_not_collide
                    "names equal in their first 254 bytes are different names";
                [82] Ci hash_twins_are_independent
                    "names with the same short hash are different names";
                [84, 85] Ci path_and_glob_characters
                    "separators and wildcards of stores are plain characters of a name";
                [80, 87] Ci the_owner_text_decides_nothing
                    "two claims of one owner text exclude each other; texts come back as they were";
                [87] Ci one_identity_one_leader
                    "of two candidates with one identity one leads and the other stands by";
            }
            j_wakeups {
                [] Ci a_release_ends_the_wait
                    "a waiter is told of a release, a withdrawal and a revocation";
                [] Ci no_release_falls_between_try_and_wait
                    "a wait that begins after the release ends at once";
                [] Ci watch_tells_of_each_change
                    "an onlooker is told of grant, release and revocation";
                [93] Ci a_step_down_hands_over
                    "a holder asked to step down leaves the lead to a standby";
            }
            k_tokens {
                [95] Ci tokens_grow_over_everything
                    "tokens grow over release, expiry, revocation, withdrawal and re-opening";
                [97] Ci renewals_keep_the_token
                    "a thousand renewals in the long tier, fifty in the short one";
                [97] Ci denied_tries_change_nothing
                    "tries that are denied touch neither the holder nor its token";
            }
            n_start {
                [107] Ci no_store_no_leader
                    "while the store does not answer no work runs; it starts after the repair";
                [108] Ci a_standby_that_stops_never_led
                    "a standby that is shut down at any moment has not run its work";
                [15] Ci the_first_try_is_at_once
                    "a candidate for a free name leads without waiting for an interval";
            }
            q_several {
                [129] Ci a_second_acquire_waits
                    "no reentrance: a second acquire in one process waits like any other";
            }
            r_long_runs {
                [135] Ci a_guard_moves_between_threads
                    "a guard is checked and released on another thread and runtime";
                [136] Ci many_short_terms
                    "many terms, a third of them dropped early: nothing piles up";
            }
            contract {
                [64, 129] Ci one_of_many_racing_claims_wins
                    "eight clients at once on a new name, and again on each freed one: one grant each";
                [64, 87] Ci processes_exclude_each_other
                    "three processes of one owner text take turns, and never two at once";
                [] Ci same_nonce_same_token
                    "repeating a granted claim gives the same token and a full ttl again";
                [] Ci same_nonce_after_expiry_is_a_new_term
                    "after its expiry a claim that is repeated gets a new token, or is denied";
                [] Ci once_leaves_no_entry
                    "a denied claim of mode once leaves nothing that could be granted later";
                [127] Ci observe_tells_each_state
                    "absent, held, free and expired are told apart, with owner, token and metadata";
                [] Ci list_is_exact_and_ordered
                    "a list has the names with the prefix, all of them, in byte order";
                [] Ci revoke_burns_a_token
                    "a revoked holder is gone and fenced; the next token is not below the burnt one";
                [93] Ci requests_reach_the_holder
                    "a wish comes with each renewal of the term it was left for, and with no other";
                [] Ci if_unchanged_is_tested_in_the_store
                    "an expired entry that has changed meanwhile is not taken over";
                [] Ci min_token_is_kept
                    "a grant is no smaller than asked, and a repeated one is raised";
                [78] Ci prepare_sixteen_at_once
                    "sixteen clients prepare a fresh namespace at once, and again";
                [] Ci closed_is_closed
                    "a closed client answers unavailable, its neighbour goes on";
                [] Ci versions_change
                    "a version is never zero, and another one after each grant";
            }
        }
    };
}
