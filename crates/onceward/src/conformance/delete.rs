//! Deleting a record, which is a compare-and-swap as well.

use super::bench::{Bench, Verdict, ensure, equal, everything, in_state, next, same, staged};
use super::{Case, cases};
use crate::record::State;

pub(super) const CASES: &[Case] = cases![
    a_deleted_record_is_gone,
    deleting_another_version_deletes_nothing,
    deleting_what_is_not_there_says_no,
    deleting_twice_says_no,
    a_deleted_key_can_be_written_anew,
    a_deleted_record_is_in_no_listing,
    a_delete_touches_no_other_record,
    a_deleted_version_cannot_be_swapped,
];

fn a_deleted_record_is_gone(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    ensure!(bench.remove(&record)?, "it says that nothing was deleted");
    ensure!(bench.find(&record.id)?.is_none(), "it is still there");
    Ok(())
}

fn deleting_another_version_deletes_nothing(bench: &Bench) -> Verdict {
    let first = staged("a")?;
    let second = next(&first);
    bench.put(&first)?;
    bench.replace(&first, &second)?;
    for other in [first, next(&second)] {
        ensure!(!bench.remove(&other)?, "version {} is not there and was deleted", other.version);
    }
    same(&*bench.found(&second.id)?, &second)
}

fn deleting_what_is_not_there_says_no(bench: &Bench) -> Verdict {
    ensure!(!bench.remove(&staged("a")?)?, "it says that something was deleted");
    Ok(())
}

fn deleting_twice_says_no(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    equal!((bench.remove(&record)?, bench.remove(&record)?), (true, false), "the two answers");
    Ok(())
}

fn a_deleted_key_can_be_written_anew(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    bench.remove(&record)?;
    let rewritten = in_state("a", State::Done, Some(5))?;
    bench.put(&rewritten)?;
    same(&*bench.found(&record.id)?, &rewritten)
}

fn a_deleted_record_is_in_no_listing(bench: &Bench) -> Verdict {
    let record = in_state("a", State::Done, Some(5))?;
    bench.put(&record)?;
    bench.remove(&record)?;
    equal!(bench.keys(&everything())?, Vec::<String>::new(), "the listing");
    equal!(bench.due_keys(10, 10)?, Vec::<String>::new(), "what is due");
    equal!(bench.count(State::Done)?, 0, "the count");
    Ok(())
}

fn a_delete_touches_no_other_record(bench: &Bench) -> Verdict {
    let (a, b) = (staged("a")?, staged("b")?);
    bench.put(&a)?;
    bench.put(&b)?;
    bench.remove(&a)?;
    same(&*bench.found(&b.id)?, &b)?;
    equal!(bench.keys(&everything())?, ["b"], "the listing");
    Ok(())
}

fn a_deleted_version_cannot_be_swapped(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    bench.remove(&record)?;
    let found = super::bench::conflict(bench.try_swap(Some(record.version), &next(&record))?)?;
    ensure!(found.is_none(), "the conflict returned the deleted record");
    ensure!(bench.find(&record.id)?.is_none(), "the deleted record is back");
    Ok(())
}
