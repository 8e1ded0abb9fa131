"""What an operator tells about a device: parsed, queued until it is answered, and carried out.

command     the verbs and their arguments, as text and as values
client      another process leaves a command in the store and waits for the reply
inbox       the agent keeps what a broker or a client delivers until it is answered
handler     the device acts on it; the reply is committed together with what changes
"""
