//! `shop delete-user`: destructive, so it needs `--confirm`. Deleting a user who does not exist is not an error.

use clap::Args;
use onceward_clap::{Applied, Class, Destructive, Fault, Mutating, Op, Plan};
use serde::Serialize;

use crate::shop::{Shop, User};

/// Delete a user and all their orders
#[derive(Args, Serialize)]
pub(crate) struct DeleteUser {
    /// The user's number
    #[arg(long)]
    id: i64,
}

impl Mutating<Destructive> for DeleteUser {
    const NAME: &'static str = "delete-user";
    const EXAMPLE: &'static [&'static str] = &["--id", "1"];
    const CLASS: Class = Class::Idempotent;
    type World = Shop;
    type Data = Option<User>;

    fn plan(&self, shop: &Shop) -> Result<Plan, Fault> {
        Ok(match shop.user(self.id)? {
            Some(user) => {
                let orders = shop.orders_of(&user.name)?;
                Plan::delete(format_args!("user {} ({})", user.id, user.name))
                    .also(format_args!("delete {orders} orders"))
            }
            None => Plan::noop(format!("There is no user {}", self.id)),
        })
    }

    fn apply(&self, op: Op<'_, Shop>) -> Result<Applied<Option<User>>, Fault> {
        let Some(user) = op.world().user(self.id)? else {
            return Ok(Applied::noop(format!("There is no user {}", self.id), None));
        };
        let (shop, dispatched) = op.dispatch()?;
        shop.delete_user(&user)?;
        Ok(dispatched.deleted(Some(user)))
    }
}
