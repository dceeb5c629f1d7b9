--- The path to the leaf as a document.
local client = require("dsh.client")

local M = {}

---@param session_id string
---@param entry_id? string the end of the path, the leaf without it
function M.open(session_id, entry_id)
  local params = { sessionId = session_id, entryId = entry_id, format = "markdown" }
  client.work("session/transcript", params, "transcript", function(err, result)
    if err then
      require("dsh.say").error(err)
      return
    end
    local scratch = require("dsh.scratch")
    local buf = scratch.buffer({
      name = "dsh-transcript://" .. session_id,
      session_id = session_id,
      syntax = "markdown",
    }, require("dsh.text").lines(result.text))
    scratch.split(buf, "vertical")
    vim.keymap.set("n", "R", function()
      M.open(session_id, entry_id)
    end, { buffer = buf, desc = "Refresh" })
  end)
end

return M
