//! One file a command.

mod create_order;
mod delete_user;
mod deploy;
mod get_order;
mod import_orders;
mod increment_counter;
mod send_email;

pub(crate) use create_order::CreateOrder;
pub(crate) use delete_user::DeleteUser;
pub(crate) use deploy::Deploy;
pub(crate) use get_order::GetOrder;
pub(crate) use import_orders::ImportOrders;
pub(crate) use increment_counter::IncrementCounter;
pub(crate) use send_email::SendEmail;
