"""`headstart demo`: four kinds of traffic through the gateway, with the prefix cache off and on."""
