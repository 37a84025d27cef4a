"""Measures AWS Lambda Powertools' idempotency on Redis, with its default settings."""

import redis
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer

import bench

parser = bench.arguments()
parser.add_argument("--port", type=int, required=True, help="of a Redis on this machine")
options = parser.parse_args()
action = bench.Action()
layer = RedisCachePersistenceLayer(client=redis.Redis(port=options.port, max_connections=options.callers + 1))


@idempotent_function(
    data_keyword_argument="order",
    persistence_store=layer,
    config=IdempotencyConfig(event_key_jmespath="number", expires_after_seconds=3600),
)
def place_order(order):
    return action()


def call(number):
    place_order(order={"number": number, "amount": 100})


bench.measure(
    call,
    action,
    options,
    peer="Powertools on Redis",
    package="aws-lambda-powertools",
    syncs="one a turn of the server's loop (appendfsync always)",
)
