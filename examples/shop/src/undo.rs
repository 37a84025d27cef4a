//! How commands are taken back, from their stored answers. An email cannot be.

use onceward_clap::{Applied, Class, Fault, Op, Original, Undo};

use crate::shop::{Counter, Order, Shop};

/// Cancels an order. It looks before it acts, so a cancellation that was killed can run again.
pub(crate) const CANCEL_ORDER: Undo<Shop> = Undo::new(cancel_order).class(Class::Idempotent);

/// Subtracts one. Twice would be wrong, so a doubt about it must be settled.
pub(crate) const DECREMENT: Undo<Shop> = Undo::new(decrement);

fn cancel_order(original: &Original<'_>, op: Op<'_, Shop>) -> Result<Applied<()>, Fault> {
    let order: Order = original.data()?;
    let is_there = op.world().order(order.id)?.is_some_and(|found| found.request == order.request);
    if !is_there {
        return Ok(Applied::noop(format!("order {} is gone already", order.id), ()));
    }
    let (shop, dispatched) = op.dispatch()?;
    shop.cancel_order(&order)?;
    Ok(dispatched.deleted(()))
}

fn decrement(original: &Original<'_>, op: Op<'_, Shop>) -> Result<Applied<()>, Fault> {
    let counter: Counter = original.data()?;
    let (shop, dispatched) = op.dispatch()?;
    shop.decrement(&counter.key)?;
    Ok(dispatched.updated(()))
}
