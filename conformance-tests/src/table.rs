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
                [21, 46] Ci wiped_is_gone
                    "an entry deleted by hand is gone, and can be taken with a larger token";
                [] Ci batch_answers_each_lease_in_order
                    "a batch answers each lease by itself and in order, live ones beside gone ones";
                [] Ci a_blocked_entry_delays_no_other
                    "while one entry is locked the others of the batch are renewed";
            }
            e_release {
                [34, 40] Ci released_once_then_not_held
                    "the first release frees, the second finds nothing";
                [40] Ci release_after_expiry_is_not_held
                    "a release after the expiry says so, and does not extend the lease";
                [] Ci withdraw_leaves_nothing
                    "a withdrawn claim holds nothing, whether it was granted or not, and harms nobody";
                [41, 95] Ci sweep_removes_the_unused_only
                    "a sweep removes old entries, never a held one, and tokens go on above";
            }
            i_names {
                [80] Ci byte_for_byte
                    "names that differ in case, accent, space or normal form are different names";
                [81] Ci long_names_do_not_collide
                    "names equal in their first 254 bytes are different names";
                [82] Ci hash_twins_are_independent
                    "names with the same short hash are different names";
                [84] Ci path_and_glob_characters
                    "separators and wildcards of stores are plain characters of a name";
                [80, 87] Ci the_owner_text_decides_nothing
                    "two claims of one owner text exclude each other; texts come back as they were";
            }
            j_wakeups {
                [] Ci a_release_ends_the_wait
                    "a waiter is told of a release, a withdrawal and a revocation";
                [] Ci no_release_falls_between_try_and_wait
                    "a wait that begins after the release ends at once";
                [] Ci watch_tells_of_each_change
                    "an onlooker is told of grant, release and revocation";
            }
            k_tokens {
                [95] Ci tokens_grow_over_everything
                    "tokens grow over release, expiry, revocation, withdrawal and re-opening";
                [97] Ci renewals_keep_the_token
                    "a thousand renewals in the long tier, fifty in the short one";
                [97] Ci denied_tries_change_nothing
                    "tries that are denied touch neither the holder nor its token";
            }
            contract {
                [64, 129] Ci one_of_many_racing_claims_wins
                    "eight clients at once on a new name, and again on each freed one: one grant each";
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
                    "a revoked holder is gone and fenced; the next token is larger still";
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
