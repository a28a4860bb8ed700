"""What the dashboards show, a module each. Layout and looks: panels.py."""

from . import endpoint, fleet, gateway, pool

BOARDS = {"fleet": fleet.board, "pool": pool.board, "endpoint": endpoint.board, "gateway": gateway.board}
